package ringmq;

import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/**
 * A second consumer joins a group and leaves it. The client's own periodic rebalance is put off for longer than the
 * program may run, so only the broker's word (code 40) can move the queues.
 */
final class Rebalance {
    private static final int QUEUE_COUNT = 8;
    private static final int ROUND_COUNT = 200;

    static Result run(Clients.Args args) throws Exception {
        // Read once, when the client's rebalance service is loaded.
        System.setProperty("rocketmq.client.rebalance.waitInterval", "3600000");
        String topic = args.text("topic");
        String group = args.text("group");
        AtomicIntegerArray byFirst = new AtomicIntegerArray(3 * ROUND_COUNT);
        AtomicIntegerArray bySecond = new AtomicIntegerArray(3 * ROUND_COUNT);

        try (Cluster cluster = new Cluster(args.namesrv())) {
            cluster.createTopic(topic, QUEUE_COUNT);
            DefaultMQProducer producer = cluster.producer(group + "-producer");
            DefaultMQPushConsumer first = cluster.consumer(group, topic, "*", QUEUE_COUNT,
                message -> byFirst.incrementAndGet(Integer.parseInt(message.getKeys())));
            round(producer, topic, 0);
            Time.await("the first round", () -> seen(byFirst, bySecond, 0) == ROUND_COUNT);

            DefaultMQPushConsumer second = cluster.consumer(group, topic, "*", QUEUE_COUNT / 2,
                message -> bySecond.incrementAndGet(Integer.parseInt(message.getKeys())));
            Time.await("the first consumer to give up half",
                () -> Cluster.owned(first, topic).size() == QUEUE_COUNT / 2);
            TreeSet<Integer> all = Cluster.owned(first, topic);
            all.addAll(Cluster.owned(second, topic));
            round(producer, topic, 1);
            Time.await("the second round", () -> seen(byFirst, bySecond, 1) == ROUND_COUNT);
            int shared = count(bySecond, 1);

            second.shutdown();
            Time.await("the first consumer to own everything again",
                () -> Cluster.owned(first, topic).size() == QUEUE_COUNT);
            round(producer, topic, 2);
            Time.await("the third round", () -> seen(byFirst, bySecond, 2) == ROUND_COUNT);

            // A queue that changes hands may bring a message twice, one that stays may not: the first round is
            // the old owner's, whose offsets were committed or not when the queue left it.
            int twice = 0;
            for (int i = ROUND_COUNT; i < 2 * ROUND_COUNT; i++) {
                twice += byFirst.get(i) + bySecond.get(i) - 1;
            }
            Result result = new Result()
                .expect("queues_together", all.size(), QUEUE_COUNT)
                .expect("third_round_by_first", count(byFirst, 2), ROUND_COUNT)
                .put("second_round_by_second", shared)
                .put("second_round_twice", twice);
            return shared > 0 && shared < ROUND_COUNT ? result : result.wrong("the second round was not shared");
        }
    }

    private static void round(DefaultMQProducer producer, String topic, int round) throws Exception {
        for (int i = round * ROUND_COUNT; i < (round + 1) * ROUND_COUNT; i++) {
            producer.send(new Message(topic, "", Integer.toString(i), Payload.text("round " + round)));
        }
    }

    private static int seen(AtomicIntegerArray a, AtomicIntegerArray b, int round) {
        int seen = 0;
        for (int i = round * ROUND_COUNT; i < (round + 1) * ROUND_COUNT; i++) {
            seen += a.get(i) + b.get(i) > 0 ? 1 : 0;
        }
        return seen;
    }

    private static int count(AtomicIntegerArray a, int round) {
        int seen = 0;
        for (int i = round * ROUND_COUNT; i < (round + 1) * ROUND_COUNT; i++) {
            seen += a.get(i) > 0 ? 1 : 0;
        }
        return seen;
    }
}
