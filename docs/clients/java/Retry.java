// A consumer whose failed messages come again later: after 1 s, 2 s, 4 s, four attempts in all.
// After the fourth one the message is in a topic for dead letters.
//
//     java -cp 'libs/*' Retry.java localhost:9092 orders.delayed orders orders.failed

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Retry {
    static final int ATTEMPTS = 4;

    public static void main(String[] args) throws Exception {
        String servers = args[0], timers = args[1], topic = args[2], failed = args[3];
        Map<String, Object> committed = Map.of(
                "bootstrap.servers", servers,
                "group.id", "billing",
                "enable.auto.commit", false,
                "auto.offset.reset", "earliest",
                "isolation.level", "read_committed");
        Map<String, Object> options = Map.of("bootstrap.servers", servers);
        var text = new StringSerializer();
        var read = new StringDeserializer();
        try (var producer = new KafkaProducer<String, String>(options, text, text);
                var consumer = new KafkaConsumer<String, String>(committed, read, read)) {
            consumer.subscribe(List.of(topic));
            while (true) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    int attempt = attemptOf(record);
                    try {
                        handle(record.value());
                        System.out.printf("done: %s, attempt %d%n", record.value(), attempt);
                    } catch (RuntimeException error) {
                        var pointer = pointer(record, failed, error);
                        if (attempt < ATTEMPTS) {
                            send(producer, later(record, timers, attempt), pointer);
                        } else {
                            send(producer, deadLetter(record, failed, error), pointer);
                            System.out.printf("given up: %s, attempt %d%n", record.value(), attempt);
                        }
                    }
                    // After the retry, or dead letter, is acknowledged. A kill between both makes
                    // two, and loses none.
                    var place = new TopicPartition(record.topic(), record.partition());
                    consumer.commitSync(Map.of(place, new OffsetAndMetadata(record.offset() + 1)));
                }
            }
        }
    }

    static void handle(String value) {
        if ("oops".equals(value)) { // a value may be null
            throw new IllegalArgumentException("no order");
        }
    }

    /** Returns once the record is acknowledged; of one that is too large, the pointer to it. */
    static void send(
            KafkaProducer<String, String> producer,
            ProducerRecord<String, String> record,
            ProducerRecord<String, String> pointer)
            throws ExecutionException, InterruptedException {
        try {
            producer.send(record).get();
        } catch (ExecutionException error) {
            if (!(error.getCause() instanceof RecordTooLargeException)) {
                throw error; // not committed: the message comes again
            }
            producer.send(pointer).get(); // it would be too large each time that it comes again
        }
    }

    /** The message as a timer, with its key and its own headers. */
    static ProducerRecord<String, String> later(
            ConsumerRecord<String, String> record, String timers, int attempt) {
        var headers = record.headers();
        headers.remove("UNIQ_KEY"); // the delivered timer's; others the service drops
        headers.remove("RETRY_ATTEMPT");
        headers.add("REAL_TOPIC", bytes(record.topic()));
        headers.add("TIMER_DELAY_MS", bytes(1000 << (attempt - 1)));
        headers.add("RETRY_ATTEMPT", bytes(attempt + 1));
        return new ProducerRecord<>(timers, null, record.key(), record.value(), headers);
    }

    /** The message as it is, and why it failed. */
    static ProducerRecord<String, String> deadLetter(
            ConsumerRecord<String, String> record, String failed, Exception error) {
        var headers = record.headers();
        headers.add("RETRY_ERROR_TEXT", bytes(error.getMessage()));
        return new ProducerRecord<>(failed, null, record.key(), record.value(), headers);
    }

    /** A dead letter without content: where the message is, and why it failed. */
    static ProducerRecord<String, String> pointer(
            ConsumerRecord<String, String> record, String failed, Exception error) {
        var place = record.topic() + "-" + record.partition() + "@" + record.offset();
        var pointer = new ProducerRecord<String, String>(failed, null);
        pointer.headers().add("RETRY_FIRST", bytes(place));
        pointer.headers().add("RETRY_REASON", bytes("too_large"));
        pointer.headers().add("RETRY_ERROR_TEXT", bytes("%.200s".formatted(error.getMessage())));
        return pointer;
    }

    /** 1 for what is no number: any producer may write the header. */
    static int attemptOf(ConsumerRecord<String, String> record) {
        var header = record.headers().lastHeader("RETRY_ATTEMPT");
        boolean isNull = header == null || header.value() == null;
        var text = isNull ? "" : new String(header.value(), UTF_8);
        return text.matches("[1-9][0-9]{0,5}") ? Integer.parseInt(text) : 1;
    }

    static byte[] bytes(Object value) {
        return String.valueOf(value).getBytes(UTF_8);
    }
}
