// A timer after a delay, one at an instant, and a cancel of the first, whose reply is awaited.
//
//     java -cp 'libs/*' Reminder.java localhost:9092 orders.delayed orders orders.replies

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Reminder {
    public static void main(String[] args) throws Exception {
        String servers = args[0], timers = args[1], target = args[2], replyTopic = args[3];
        // acks=all and idempotence are the defaults of Java's producer.
        Map<String, Object> options = Map.of("bootstrap.servers", servers);
        Map<String, Object> committed =
                Map.of("bootstrap.servers", servers, "isolation.level", "read_committed");
        var text = new StringSerializer();
        var read = new StringDeserializer();
        try (var producer = new KafkaProducer<String, String>(options, text, text);
                var replies = new KafkaConsumer<String, String>(committed, read, read)) {
            var later = List.of(
                    header("REAL_TOPIC", target),
                    header("TIMER_DELAY_MS", Duration.ofMinutes(15).toMillis()),
                    header("UNIQ_KEY", "reminder-42"));
            producer.send(record(timers, "order-42", "pay your order", later)).get();

            var atTwo = List.of(
                    header("REAL_TOPIC", target),
                    header("TIMER_DELIVER_MS", Instant.now().plusSeconds(2).toEpochMilli()));
            producer.send(record(timers, "order-43", "pay now", atTwo)).get();

            readFromTheEnd(replies, replyTopic); // before the cancel: its reply comes later
            // With the timer's key, so in its partition, where ids count.
            var cancel = List.of(header("TIMER_DEL_UNIQKEY", "reminder-42"));
            var sent = producer.send(record(timers, "order-42", null, cancel)).get();
            System.out.println(replyTo(sent.toString(), replies, Duration.ofMinutes(1)));
        }
    }

    static void readFromTheEnd(KafkaConsumer<String, String> consumer, String topic) {
        var partitions = consumer.partitionsFor(topic).stream()
                .map(info -> new TopicPartition(topic, info.partition()))
                .toList();
        consumer.assign(partitions);
        consumer.seekToEnd(partitions);
        partitions.forEach(consumer::position); // seekToEnd waits for a first call
    }

    /** Waits for the reply to the cancel at `source`, topic-partition@offset. */
    static String replyTo(String source, KafkaConsumer<String, String> replies, Duration atMost) {
        for (var end = Instant.now().plus(atMost); Instant.now().isBefore(end); ) {
            for (var reply : replies.poll(Duration.ofMillis(100))) {
                if (source.equals(value(reply.headers(), "TIMER_SOURCE"))) {
                    return value(reply.headers(), "TIMER_ANSWER");
                }
            }
        }
        throw new IllegalStateException("no reply to " + source + " within " + atMost);
    }

    static ProducerRecord<String, String> record(
            String topic, String key, String value, List<Header> headers) {
        return new ProducerRecord<>(topic, null, key, value, headers);
    }

    static Header header(String name, Object value) {
        return new RecordHeader(name, value.toString().getBytes(UTF_8));
    }

    static String value(Headers headers, String name) {
        var header = headers.lastHeader(name);
        return header == null ? null : new String(header.value(), UTF_8);
    }
}
