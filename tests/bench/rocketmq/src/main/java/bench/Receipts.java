package bench;

import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes all deliveries and writes a record of three little-endian longs for each: its number,
 * when the broker stored it in its topic, and when it was received here, in epoch ms.
 *
 * <p>Arguments: name server, topic, file. Limits of a pull are raised as far as they go. Ends with
 * its stdin.
 */
public final class Receipts {
    private static final int DIGITS = 12;
    private static final int THREADS = 2;
    private static final int MESSAGES_MAX = 512;

    private final OutputStream out;

    private Receipts(String file) throws Exception {
        out = new FileOutputStream(file);
    }

    public static void main(String[] arguments) throws Exception {
        Load.exitOnFailure();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-consumer");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        consumer.setConsumeThreadMin(THREADS);
        consumer.setConsumeThreadMax(THREADS);
        consumer.setPullBatchSize(MESSAGES_MAX);
        consumer.setConsumeMessageBatchMaxSize(MESSAGES_MAX);
        consumer.setPullThresholdForQueue(60_000);
        consumer.setPullThresholdSizeForQueue(1024);
        Receipts receipts = new Receipts(arguments[2]);
        consumer.registerMessageListener(
                (MessageListenerConcurrently) (messages, context) -> {
                    receipts.write(messages);
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
        consumer.setMqClientApiTimeout(30_000);
        consumer.start();
        Load.answer("{\"id\": 0}");
        while (System.in.read() >= 0) {}
        System.exit(0);
    }

    private void write(List<MessageExt> messages) {
        long now = System.currentTimeMillis();
        ByteBuffer rows = ByteBuffer.allocate(messages.size() * 24).order(ByteOrder.LITTLE_ENDIAN);
        for (MessageExt message : messages) {
            rows.putLong(number(message.getBody()));
            rows.putLong(message.getStoreTimestamp());
            rows.putLong(now);
        }
        synchronized (out) {
            try {
                out.write(rows.array());
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            }
        }
    }

    private static long number(byte[] body) {
        long number = 0;
        for (int at = 0; at < DIGITS; at++) {
            number = 10 * number + body[at] - '0';
        }
        return number;
    }
}
