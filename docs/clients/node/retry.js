// A consumer whose failed messages come again later: after 1 s, 2 s, 4 s, four attempts in all.
// After the fourth one the message is in a topic for dead letters.
//
//     node retry.js localhost:9092 orders.delayed orders orders.failed

const { Kafka, Partitioners, logLevel } = require("kafkajs");

const ATTEMPTS = 4;

async function main() {
  const [servers, timers, topic, failed] = process.argv.slice(2);
  const kafka = new Kafka({ brokers: servers.split(","), logLevel: logLevel.WARN });
  const producer = kafka.producer({
    idempotent: true,
    createPartitioner: Partitioners.DefaultPartitioner, // Java's
  });
  const consumer = kafka.consumer({ groupId: "billing" });
  await producer.connect();
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      const attempt = attemptOf(message);
      try {
        handle(message);
        console.log(`done: ${message.value}, attempt ${attempt}`);
      } catch (error) {
        const letter = pointer(`${topic}-${partition}@${message.offset}`, failed, error);
        if (attempt < ATTEMPTS) {
          await send(producer, later(message, topic, timers, attempt), letter);
        } else {
          await send(producer, deadLetter(message, failed, error), letter);
          console.log(`given up: ${message.value}, attempt ${attempt}`);
        }
      }
      // After the retry, or dead letter, is acknowledged. A kill between both makes two, and loses
      // none.
      const offset = String(BigInt(message.offset) + 1n);
      await consumer.commitOffsets([{ topic, partition, offset }]);
    },
  });
}

function handle({ value }) {
  if (String(value) === "oops") throw new Error("no order");
}

// Returns once the record is acknowledged; of one that is too large, the pointer to it.
async function send(producer, record, letter) {
  try {
    await producer.send(record);
  } catch (error) {
    if (error.type !== "MESSAGE_TOO_LARGE") throw error; // not committed: the message comes again
    await producer.send(letter); // it would be too large each time that it comes again
  }
}

// The message as a timer, with its key and its own headers.
function later({ key, value, headers }, topic, timers, attempt) {
  // The id is the delivered timer's. Other headers of a delivery are dropped by the service.
  const { UNIQ_KEY, ...own } = headers;
  const retry = {
    REAL_TOPIC: topic,
    TIMER_DELAY_MS: String(1000 << (attempt - 1)),
    RETRY_ATTEMPT: String(attempt + 1),
  };
  return { topic: timers, acks: -1, messages: [{ key, value, headers: { ...own, ...retry } }] };
}

// The message as it is, and why it failed.
function deadLetter({ key, value, headers }, failed, error) {
  const message = { key, value, headers: { ...headers, RETRY_ERROR_TEXT: error.message } };
  return { topic: failed, acks: -1, messages: [message] };
}

// A dead letter without content: where the message is, and why it failed.
function pointer(place, failed, error) {
  const headers = {
    RETRY_FIRST: place,
    RETRY_REASON: "too_large",
    RETRY_ERROR_TEXT: error.message.slice(0, 200),
  };
  return { topic: failed, acks: -1, messages: [{ value: null, headers }] };
}

// 1 for what is no number: any producer may write the header.
function attemptOf({ headers: { RETRY_ATTEMPT: attempt } }) {
  return /^[1-9][0-9]{0,5}$/.test(String(attempt)) ? Number(attempt) : 1;
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
