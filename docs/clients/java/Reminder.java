// A timer after a delay, one at an instant, and a cancel of the first: the headers are all of it.
//
//     java -cp 'libs/*' Reminder.java localhost:9092 orders.delayed orders

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.StringSerializer;

public class Reminder {
    public static void main(String[] args) throws Exception {
        String servers = args[0], timers = args[1], target = args[2];
        // acks=all and idempotence are the defaults of Java's producer.
        Map<String, Object> options = Map.of("bootstrap.servers", servers);
        var text = new StringSerializer();
        try (var producer = new KafkaProducer<String, String>(options, text, text)) {
            var later = List.of(
                    header("REAL_TOPIC", target),
                    header("TIMER_DELAY_MS", Duration.ofMinutes(15).toMillis()),
                    header("UNIQ_KEY", "reminder-42"));
            producer.send(record(timers, "order-42", "pay your order", later)).get();

            var atTwo = List.of(
                    header("REAL_TOPIC", target),
                    header("TIMER_DELIVER_MS", Instant.now().plusSeconds(2).toEpochMilli()));
            producer.send(record(timers, "order-43", "pay now", atTwo)).get();

            // With the timer's key, so in its partition, where ids count.
            var cancel = List.of(header("TIMER_DEL_UNIQKEY", "reminder-42"));
            producer.send(record(timers, "order-42", null, cancel)).get();
        }
    }

    static ProducerRecord<String, String> record(
            String topic, String key, String value, List<Header> headers) {
        return new ProducerRecord<>(topic, null, key, value, headers);
    }

    static Header header(String name, Object value) {
        return new RecordHeader(name, value.toString().getBytes(UTF_8));
    }
}
