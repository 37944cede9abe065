package bench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends timers on a schedule.
 *
 * <p>Arguments: name server, topic, bytes of a body. Reads commands, one a line, and answers each
 * with a line of JSON on stdout, in any order:
 *
 * <pre>
 *   send ID FILE FIRST    the timers of FILE, numbered from FIRST on: pairs of little-endian longs,
 *                         when to send (0: at once) and when due, both in epoch ms
 *   behind ID             how many timers the broker has stored and not yet put into its wheel
 * </pre>
 *
 * <p>Sends are asynchronous, by two threads, with at most WINDOW unanswered. Ends with its stdin.
 */
public final class Load {
    private static final int THREADS = 2;
    private static final int WINDOW = 1000;
    private static final int DIGITS = 12;
    private static final int QUEUES = 4;
    private static final long TIMEOUT_MS = 30_000;
    private static final long START_MS = 300_000;

    private final DefaultMQProducer producer = new DefaultMQProducer("bench-load");
    private final String topic;
    private final int bodyBytes;

    private Load(String nameServer, String topic, int bodyBytes) throws Exception {
        this.topic = topic;
        this.bodyBytes = bodyBytes;
        producer.setNamesrvAddr(nameServer);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setSendMsgTimeout((int) TIMEOUT_MS);
        producer.setMqClientApiTimeout((int) TIMEOUT_MS);
        producer.start();
        createTopic();
    }

    public static void main(String[] arguments) throws Exception {
        exitOnFailure();
        Load load = new Load(arguments[0], arguments[1], Integer.parseInt(arguments[2]));
        answer("{\"id\": 0}");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            new Thread(() -> load.obey(words), line).start();
        }
        System.exit(0);
    }

    /** Threads of the client would keep a program alive whose own thread has failed. */
    static void exitOnFailure() {
        Thread.currentThread()
                .setUncaughtExceptionHandler(
                        (thread, failure) -> {
                            failure.printStackTrace();
                            System.exit(1);
                        });
    }

    static synchronized void answer(String json) {
        System.out.println(json);
        System.out.flush();
    }

    /** The broker is registered with the name server some time after its start. */
    private void createTopic() throws Exception {
        for (long end = System.currentTimeMillis() + START_MS; ; Thread.sleep(100)) {
            try {
                producer.createTopic("TBW102", topic, QUEUES, Map.of());
                if (producer.fetchPublishMessageQueues(topic).size() == QUEUES) {
                    client().updateTopicRouteInfoFromNameServer(topic); // `behind` needs the address
                    return;
                }
            } catch (Exception notYet) {
                if (System.currentTimeMillis() > end) {
                    throw notYet;
                }
            }
        }
    }

    private MQClientInstance client() {
        return producer.getDefaultMQProducerImpl().getMqClientFactory();
    }

    private void obey(String[] words) {
        try {
            String reply =
                    words[0].equals("send")
                            ? send(Path.of(words[2]), Long.parseLong(words[3]))
                            : behind();
            answer("{\"id\": " + words[1] + ", " + reply + "}");
        } catch (Exception failure) {
            String text = failure.toString().replaceAll("[^\\w .:,-]", " ");
            answer("{\"id\": " + words[1] + ", \"error\": \"" + text + "\"}");
        }
    }

    private String behind() throws Exception {
        String broker = client().findBrokerAddrByTopic(topic);
        var api = client().getMQClientAPIImpl();
        var table = api.getBrokerRuntimeInfo(broker, TIMEOUT_MS).getTable();
        return "\"behind\": " + table.get("timerOffsetBehind");
    }

    private String send(Path file, long first) throws Exception {
        var times = ByteBuffer.wrap(Files.readAllBytes(file)).order(ByteOrder.LITTLE_ENDIAN);
        Semaphore window = new Semaphore(WINDOW);
        AtomicLong failed = new AtomicLong();
        long begun = System.currentTimeMillis();
        Thread[] threads = new Thread[THREADS];
        for (int number = 0; number < THREADS; number++) {
            int from = number;
            threads[number] =
                    new Thread(() -> sendEvery(times.asLongBuffer(), from, first, window, failed));
            threads[number].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        window.acquire(WINDOW);
        long acked = System.currentTimeMillis();
        return "\"begun_ms\": %d, \"acked_ms\": %d, \"failed\": %d".formatted(begun, acked, failed.get());
    }

    private void sendEvery(
            LongBuffer times, int from, long first, Semaphore window, AtomicLong failed) {
        SendCallback done =
                new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        window.release();
                    }

                    @Override
                    public void onException(Throwable failure) {
                        if (failed.getAndIncrement() == 0) {
                            failure.printStackTrace();
                        }
                        window.release();
                    }
                };
        byte[] padding = new byte[bodyBytes];
        Arrays.fill(padding, (byte) '.');
        for (int row = from; row < times.limit() / 2; row += THREADS) {
            try {
                long wait = times.get(2 * row) - System.currentTimeMillis();
                if (wait > 0) {
                    Thread.sleep(wait);
                }
                Message message = new Message(topic, body(padding, first + row));
                message.setDeliverTimeMs(times.get(2 * row + 1));
                window.acquire();
                producer.send(message, done);
            } catch (Exception failure) {
                done.onException(failure);
            }
        }
    }

    private static byte[] body(byte[] padding, long number) {
        byte[] body = padding.clone();
        long rest = number;
        for (int at = DIGITS - 1; at >= 0; at--, rest /= 10) {
            body[at] = (byte) ('0' + rest % 10);
        }
        return body;
    }
}
