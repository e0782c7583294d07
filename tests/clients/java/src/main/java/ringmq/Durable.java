package ringmq;

import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Programs for a broker that is stopped and started between them. The file of acknowledgements is the memory that
 * outlives each: one line a message the broker said it had, {@code index queue offset sha256}.
 */
final class Durable {
    /** Sends until {@code --count} or, with a broker that dies, until the first failure. Both are success. */
    static Result produce(Clients.Args args) throws Exception {
        String topic = args.text("topic");
        int count = args.count("count", 2_000);
        int first = args.count("first", 0);
        int threadCount = args.count("threads", 2);
        Payload payload = new Payload(args.number("seed", 1), first + count, args.count("big", 0), 2L << 30);
        AtomicInteger next = new AtomicInteger(first);
        AtomicInteger acked = new AtomicInteger();
        AtomicBoolean failed = new AtomicBoolean();

        try (Cluster cluster = new Cluster(args.namesrv());
             BufferedWriter acks = Files.newBufferedWriter(Path.of(args.text("acks")))) {
            cluster.createTopic(topic, args.count("queues", 8));
            DefaultMQProducer producer = cluster.producer(topic + "-producer");
            // A second try after a failure would be a message that the file does not tell from the first.
            producer.setRetryTimesWhenSendFailed(0);
            producer.setSendMsgTimeout(10_000);
            Thread[] threads = new Thread[threadCount];
            for (int t = 0; t < threadCount; t++) {
                threads[t] = new Thread(() -> {
                    for (int i = next.getAndIncrement(); i < first + count && !failed.get(); i = next.getAndIncrement()) {
                        Message message = payload.message(topic, i);
                        String hash = HexFormat.of().formatHex(Payload.hash(message.getBody()));
                        try {
                            SendResult sent = producer.send(message);
                            if (sent.getSendStatus() != SendStatus.SEND_OK) {
                                throw new IllegalStateException(sent.toString());
                            }
                            synchronized (acks) {
                                acks.write(i + " " + sent.getMessageQueue().getQueueId() + " " + sent.getQueueOffset()
                                    + " " + hash + "\n");
                                acks.flush();
                            }
                            acked.incrementAndGet();
                        } catch (Exception error) {
                            failed.set(true);
                            System.err.println("the first failed send: " + error);
                        }
                    }
                });
                threads[t].start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
        }
        return new Result().put("acked", acked.get()).put("stopped_by_failure", failed.get());
    }

    /** A new group reads from the start: everything acknowledged must come, whole and from its place. */
    static Result consume(Clients.Args args) throws Exception {
        String topic = args.text("topic");
        Map<Integer, String> acks = acks(args.text("acks"));
        Map<Integer, String> received = new ConcurrentHashMap<>();
        AtomicInteger wrong = new AtomicInteger();
        AtomicInteger extra = new AtomicInteger();
        AtomicInteger twice = new AtomicInteger();
        AtomicInteger left = new AtomicInteger(acks.size());

        try (Cluster cluster = new Cluster(args.namesrv())) {
            DefaultMQPushConsumer consumer = cluster.consumer(args.text("group"), topic, "*", args.count("queues", 8), message -> {
                int i = Payload.index(message);
                String is = message.getQueueId() + " " + message.getQueueOffset() + " "
                    + HexFormat.of().formatHex(Payload.hash(message.getBody()));
                String want = acks.get(i);
                if (received.put(i, is) != null) {
                    twice.incrementAndGet();
                } else if (want == null) {
                    extra.incrementAndGet(); // stored, but the broker died before it could say so
                } else {
                    left.decrementAndGet();
                }
                if (!Payload.hasItsProperties(message, i) || want != null && !want.equals(is)) {
                    wrong.incrementAndGet();
                }
            });
            Time.reached(Time.WAIT_MS_MAX, () -> left.get() == 0);
            Time.sleep(1_000);
            // Shutting down commits the offsets, which `resume` relies on.
            consumer.shutdown();
        }
        return new Result().put("acked", acks.size()).put("received", received.size()).put("extra", extra.get())
            .expect("lost", left.get(), 0).expect("wrong", wrong.get(), 0).expect("twice", twice.get(), 0);
    }

    /**
     * A group that has read everything comes back. One new message is put into each queue: what arrives before it in
     * that queue is something the group had already read.
     */
    static Result resume(Clients.Args args) throws Exception {
        String topic = args.text("topic");
        int queueCount = args.count("queues", 8);
        String mark = "mark-" + System.nanoTime();
        Set<Integer> marked = ConcurrentHashMap.newKeySet();
        AtomicInteger again = new AtomicInteger();
        try (Cluster cluster = new Cluster(args.namesrv())) {
            cluster.consumer(args.text("group"), topic, "*", queueCount, message -> {
                if (mark.equals(message.getKeys())) {
                    marked.add(message.getQueueId());
                } else {
                    again.incrementAndGet();
                }
            });
            DefaultMQProducer producer = cluster.producer(topic + "-marker");
            for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
                producer.send(new Message(topic, "", mark, Payload.text("mark")), queue);
            }
            Time.reached(Time.WAIT_MS_MAX, () -> marked.size() == queueCount);
        }
        return new Result().expect("marks", marked.size(), queueCount).expect("again", again.get(), 0);
    }

    private static Map<Integer, String> acks(String path) throws IOException {
        Map<Integer, String> acks = new HashMap<>();
        for (String line : Files.readAllLines(Path.of(path))) {
            int blank = line.indexOf(' ');
            acks.put(Integer.parseInt(line.substring(0, blank)), line.substring(blank + 1));
        }
        return acks;
    }
}
