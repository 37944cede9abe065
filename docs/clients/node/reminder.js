// A timer after a delay, one at an instant, and a cancel of the first, whose reply is awaited.
//
//     node reminder.js localhost:9092 orders.delayed orders orders.replies

const { randomUUID } = require("crypto");
const { Kafka, Partitioners, logLevel } = require("kafkajs");

async function main() {
  const [servers, timers, target, replyTopic] = process.argv.slice(2);
  const kafka = new Kafka({ brokers: servers.split(","), logLevel: logLevel.WARN });
  const producer = kafka.producer({
    idempotent: true,
    createPartitioner: Partitioners.DefaultPartitioner, // Java's
  });
  const replies = kafka.consumer({ groupId: `reminder-${randomUUID()}` });
  await producer.connect();
  await replies.connect();
  const admin = kafka.admin();
  await admin.connect();
  try {
    await producer.send({
      topic: timers,
      acks: -1,
      messages: [
        {
          key: "order-42",
          value: "pay your order",
          headers: {
            REAL_TOPIC: target,
            TIMER_DELAY_MS: String(15 * 60 * 1000),
            UNIQ_KEY: "reminder-42",
          },
        },
        {
          key: "order-43",
          value: "pay now",
          headers: { REAL_TOPIC: target, TIMER_DELIVER_MS: String(Date.now() + 2000) },
        },
      ],
    });
    const ends = await admin.fetchTopicOffsets(replyTopic); // the reply comes after them
    // With the timer's key, so in its partition, where ids count.
    const cancel = { key: "order-42", value: null, headers: { TIMER_DEL_UNIQKEY: "reminder-42" } };
    const [sent] = await producer.send({ topic: timers, acks: -1, messages: [cancel] });
    const source = `${timers}-${sent.partition}@${sent.baseOffset}`;
    console.log(await replyTo(source, replies, replyTopic, ends, 60000));
  } finally {
    await producer.disconnect();
    await replies.disconnect();
    await admin.disconnect();
  }
}

// Waits for the reply to the cancel at `source`, which is behind these ends of the reply topic.
async function replyTo(source, replies, topic, ends, atMostMs) {
  await replies.subscribe({ topic });
  return new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`no reply to ${source}`)), atMostMs).unref();
    const eachMessage = async ({ message: { headers } }) => {
      if (String(headers.TIMER_SOURCE) === source) resolve(String(headers.TIMER_ANSWER));
    };
    replies.run({ eachMessage }).catch(reject);
    for (const { partition, offset } of ends) replies.seek({ topic, partition, offset });
  });
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
