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
      const attempt = Number(message.headers.RETRY_ATTEMPT ?? 1);
      try {
        handle(message);
        console.log(`done: ${message.value}, attempt ${attempt}`);
      } catch (error) {
        if (attempt < ATTEMPTS) {
          await producer.send({ topic: timers, acks: -1, messages: [later(message, topic, attempt)] });
        } else {
          await producer.send({ topic: failed, acks: -1, messages: [deadLetter(message, error)] });
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

// The message as a timer, with its key and its own headers.
function later({ key, value, headers }, topic, attempt) {
  // The id is the delivered timer's. Other headers of a delivery are dropped by the service.
  const { UNIQ_KEY, ...own } = headers;
  const retry = {
    REAL_TOPIC: topic,
    TIMER_DELAY_MS: String(1000 << (attempt - 1)),
    RETRY_ATTEMPT: String(attempt + 1),
  };
  return { key, value, headers: { ...own, ...retry } };
}

// The message as it is, and why it failed.
function deadLetter({ key, value, headers }, error) {
  return { key, value, headers: { ...headers, RETRY_ERROR_TEXT: error.message } };
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
