// A timer after a delay, one at an instant, and a cancel of the first: the headers are all of it.
//
//     node reminder.js localhost:9092 orders.delayed orders

const { Kafka, Partitioners } = require("kafkajs");

async function main() {
  const [servers, timers, target] = process.argv.slice(2);
  const kafka = new Kafka({ brokers: servers.split(",") });
  const producer = kafka.producer({
    idempotent: true,
    createPartitioner: Partitioners.DefaultPartitioner, // Java's
  });
  await producer.connect();
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
        // With the timer's key, so in its partition, where ids count.
        { key: "order-42", value: null, headers: { TIMER_DEL_UNIQKEY: "reminder-42" } },
      ],
    });
  } finally {
    await producer.disconnect();
  }
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
