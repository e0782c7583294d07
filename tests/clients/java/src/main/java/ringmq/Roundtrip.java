package ringmq;

import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The main job: every message that goes in comes out once, whole, where the broker said it was put.
 *
 * <p>The consumer owns all queues before the first send and nobody joins or leaves, so "at least once" leaves no
 * room for a second delivery. Only hashes are kept, never bodies.
 */
final class Roundtrip {
    private static final int QUEUE_COUNT = 8;

    static Result run(Clients.Args args) throws Exception {
        int count = args.count("count", 2_000);
        int bigCount = args.count("big", 4);
        int threadCount = args.count("threads", 4);
        String topic = args.text("topic");
        Payload payload = new Payload(args.number("seed", 1), count, bigCount, args.number("cap", 2L << 30));

        byte[][] hashes = new byte[count][];
        String[] uniqueKeys = new String[count];
        long[] sentPlaces = new long[count];
        long[] receivedPlaces = new long[count];
        AtomicIntegerArray received = new AtomicIntegerArray(count);
        AtomicInteger distinct = new AtomicInteger();
        AtomicInteger twice = new AtomicInteger();
        AtomicInteger corrupt = new AtomicInteger();
        AtomicInteger wrongProperties = new AtomicInteger();
        AtomicInteger unknown = new AtomicInteger();

        try (Cluster cluster = new Cluster(args.namesrv())) {
            cluster.createTopic(topic, QUEUE_COUNT);
            DefaultMQPushConsumer consumer = cluster.consumerUnstarted(args.text("group"), message -> {
                int i = Payload.index(message);
                if (i < 0 || i >= count) {
                    unknown.incrementAndGet();
                    return;
                }
                // The hash was stored before the send began, and the socket orders the two threads.
                if (!Arrays.equals(hashes[i], Payload.hash(message.getBody()))) {
                    corrupt.incrementAndGet();
                }
                if (!Payload.hasItsProperties(message, i) || !message.getTopic().equals(topic)) {
                    wrongProperties.incrementAndGet();
                }
                if (received.incrementAndGet(i) > 1) {
                    twice.incrementAndGet();
                } else {
                    receivedPlaces[i] = place(message.getQueueId(), message.getQueueOffset());
                    distinct.incrementAndGet();
                }
            });
            // The default of the client. The consumer knows its starting places before the first send.
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
            cluster.start(consumer, topic, "*");
            Time.await("all queues to be owned", () -> Cluster.owned(consumer, topic).size() == QUEUE_COUNT);

            System.err.println("the consumer owns its queues");

            DefaultMQProducer producer = cluster.producer(args.text("group") + "-producer");
            AtomicInteger next = new AtomicInteger();
            AtomicInteger sendFailures = new AtomicInteger();
            AtomicLong queuesSeen = new AtomicLong();
            Thread[] threads = new Thread[threadCount];
            long started = System.nanoTime();
            for (int t = 0; t < threadCount; t++) {
                threads[t] = new Thread(() -> {
                    for (int i = next.getAndIncrement(); i < count; i = next.getAndIncrement()) {
                        var message = payload.message(topic, i);
                        hashes[i] = Payload.hash(message.getBody());
                        try {
                            SendResult sent = producer.send(message);
                            if (sent.getSendStatus() != SendStatus.SEND_OK) {
                                throw new IllegalStateException(sent.toString());
                            }
                            uniqueKeys[i] = sent.getMsgId();
                            sentPlaces[i] = place(sent.getMessageQueue().getQueueId(), sent.getQueueOffset());
                            queuesSeen.accumulateAndGet(1L << sent.getMessageQueue().getQueueId(), (a, b) -> a | b);
                        } catch (Exception error) {
                            if (sendFailures.incrementAndGet() <= 3) {
                                error.printStackTrace();
                            }
                        }
                    }
                });
                threads[t].start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
            long sentMs = (System.nanoTime() - started) / 1_000_000;
            Time.reached(Time.WAIT_MS_MAX, () -> distinct.get() == count);
            long allMs = (System.nanoTime() - started) / 1_000_000;
            // A second delivery would come late; give it the chance to be seen.
            Time.sleep(2_000);

            int lost = 0;
            int wrongPlaces = 0;
            for (int i = 0; i < count; i++) {
                if (received.get(i) == 0) {
                    lost++;
                } else if (uniqueKeys[i] != null && sentPlaces[i] != receivedPlaces[i]) {
                    wrongPlaces++;
                }
            }
            return new Result()
                .put("sent", count).put("bytes", payload.totalBytes).put("sent_ms", sentMs).put("all_ms", allMs)
                .expect("received", distinct.get(), count)
                .expect("send_failures", sendFailures.get(), 0)
                .expect("lost", lost, 0)
                .expect("twice", twice.get(), 0)
                .expect("corrupt", corrupt.get(), 0)
                .expect("wrong_properties", wrongProperties.get(), 0)
                .expect("wrong_places", wrongPlaces, 0)
                .expect("unknown", unknown.get(), 0)
                .expect("queues", Long.bitCount(queuesSeen.get()), QUEUE_COUNT);
        }
    }

    private static long place(int queueId, long queueOffset) {
        return (long) queueId << 48 | queueOffset;
    }
}
