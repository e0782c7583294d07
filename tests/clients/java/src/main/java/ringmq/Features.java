package ringmq;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** One short use of each part of the client that an application meets. {@code --only a,b} picks some. */
@SuppressWarnings("deprecation") // DefaultMQPullConsumer: old applications have it, so it must work
final class Features {
    private final Cluster cluster;
    private final String prefix;

    private Features(Cluster cluster, String prefix) {
        this.cluster = cluster;
        this.prefix = prefix;
    }

    interface Feature {
        void check() throws Exception;
    }

    static Result run(Clients.Args args) throws Exception {
        Result result = new Result();
        try (Cluster cluster = new Cluster(args.namesrv())) {
            Features all = new Features(cluster, args.text("topic"));
            Map<String, Feature> features = new LinkedHashMap<>();
            features.put("send", all::send);
            features.put("batch", all::batch);
            features.put("tags", all::tags);
            features.put("auto_topic", all::autoTopic);
            features.put("pull", all::pull);
            features.put("lite_pull", all::litePull);
            features.put("lite_assign", all::liteAssign);
            features.put("offsets", all::offsets);
            features.put("resume", all::resume);
            features.put("broadcast", all::broadcast);
            features.put("too_large", all::tooLarge);
            features.put("two_topics", all::twoTopics);
            String only = args.text("only", "");
            for (Map.Entry<String, Feature> feature : features.entrySet()) {
                if (!only.isEmpty() && !Arrays.asList(only.split(",")).contains(feature.getKey())) {
                    continue;
                }
                long started = System.nanoTime();
                try {
                    feature.getValue().check();
                    result.put(feature.getKey(), "ok");
                } catch (Exception | AssertionError error) {
                    error.printStackTrace();
                    result.put(feature.getKey(), "failed").wrong(feature.getKey() + ": " + error);
                }
                System.err.println(feature.getKey() + " took " + (System.nanoTime() - started) / 1_000_000 + " ms");
            }
        }
        return result;
    }

    /** Synchronous, asynchronous and one-way sends all arrive. */
    private void send() throws Exception {
        String topic = topic("send", 8);
        Set<String> got = ConcurrentHashMap.newKeySet();
        AtomicInteger deliveries = new AtomicInteger();
        cluster.consumer(group("send"), topic, "*", 8, message -> {
            got.add(message.getKeys());
            deliveries.incrementAndGet();
        });
        DefaultMQProducer producer = cluster.producer(group("send") + "-producer");
        Set<String> ids = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 100; i++) {
            SendResult sent = producer.send(message(topic, "sync-" + i));
            same(SendStatus.SEND_OK, sent.getSendStatus());
            same(true, sent.getOffsetMsgId().matches("[0-9A-F]{32}"));
            ids.add(sent.getOffsetMsgId());
        }
        CountDownLatch answers = new CountDownLatch(100);
        AtomicInteger failures = new AtomicInteger();
        for (int i = 0; i < 100; i++) {
            producer.send(message(topic, "async-" + i), new SendCallback() {
                @Override
                public void onSuccess(SendResult sent) {
                    ids.add(sent.getOffsetMsgId());
                    answers.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    error.printStackTrace();
                    failures.incrementAndGet();
                    answers.countDown();
                }
            });
        }
        same(true, answers.await(Time.WAIT_MS_MAX, TimeUnit.MILLISECONDS));
        same(0, failures.get());
        same(200, ids.size());
        for (int i = 0; i < 100; i++) {
            producer.sendOneway(message(topic, "oneway-" + i));
        }
        Time.await("300 messages", () -> got.size() == 300 && deliveries.get() >= 300);
        same(300, deliveries.get());
    }

    /** A batch is one request and many messages, each with its own keys, id and place. */
    private void batch() throws Exception {
        String topic = topic("batch", 1);
        Map<String, MessageExt> got = new ConcurrentHashMap<>();
        cluster.consumer(group("batch"), topic, "*", 1, message -> got.put(message.getKeys(), message));
        DefaultMQProducer producer = cluster.producer(group("batch") + "-producer");
        for (int round = 0; round < 3; round++) {
            List<Message> messages = new ArrayList<>();
            for (int i = 0; i < 50; i++) {
                Message message = message(topic, "batch-" + (50 * round + i));
                message.setTags("T" + i % 3);
                message.putUserProperty("i", Integer.toString(i));
                messages.add(message);
            }
            SendResult sent = producer.send(messages);
            same(SendStatus.SEND_OK, sent.getSendStatus());
            same(50, sent.getMsgId().split(",").length);
            same(50, sent.getOffsetMsgId().split(",").length);
            same((long) 50 * round, sent.getQueueOffset());
        }
        Time.await("150 messages", () -> got.size() == 150);
        for (int i = 0; i < 150; i++) {
            MessageExt message = got.get("batch-" + i);
            same("batch-" + i, new String(message.getBody(), "UTF-8"));
            same((long) i, message.getQueueOffset());
            same("T" + i % 50 % 3, message.getTags());
            same(Integer.toString(i % 50), message.getUserProperty("i"));
        }
    }

    /** Only subscribed tags arrive, not even one whose Java hash is the same ("AaAa" and "BBBB"). */
    private void tags() throws Exception {
        String topic = topic("tags", 4);
        Set<String> got = ConcurrentHashMap.newKeySet();
        Set<String> all = ConcurrentHashMap.newKeySet();
        cluster.consumer(group("tags"), topic, "AaAa || red", 4, message -> got.add(message.getTags() + "/" + message.getKeys()));
        cluster.consumer(group("tags-all"), topic, "*", 4, message -> all.add(message.getTags() + "/" + message.getKeys()));
        DefaultMQProducer producer = cluster.producer(group("tags") + "-producer");
        Set<String> want = new HashSet<>();
        Set<String> wantAll = new HashSet<>();
        for (int i = 0; i < 200; i++) {
            String tag = new String[] {"AaAa", "BBBB", "red", "blue", null}[i % 5];
            producer.send(new Message(topic, tag, "k" + i, Payload.text("x")));
            wantAll.add(tag + "/k" + i);
            if ("AaAa".equals(tag) || "red".equals(tag)) {
                want.add(tag + "/k" + i);
            }
        }
        // The last message of each queue that is wanted comes after all that are not.
        Time.await("the wanted tags", () -> got.containsAll(want) && all.containsAll(wantAll));
        same(want, got);
        same(wantAll, all);
    }

    /** The first send to an unknown name makes the topic, with the four queues the client asks for. */
    private void autoTopic() throws Exception {
        String topic = prefix + "-auto";
        DefaultMQProducer producer = cluster.producer(group("auto") + "-producer");
        for (int i = 0; i < 20; i++) {
            same(SendStatus.SEND_OK, producer.send(message(topic, "auto-" + i)).getSendStatus());
        }
        Time.await("a route", () -> cluster.queueCount(topic) == 4);
        Set<String> got = ConcurrentHashMap.newKeySet();
        cluster.consumer(group("auto"), topic, "*", 4, message -> got.add(message.getKeys()));
        Time.await("20 messages", () -> got.size() == 20);
    }

    /** The old pull consumer sees every status, and its offsets are kept by the broker. */
    private void pull() throws Exception {
        String topic = topic("pull", 1);
        DefaultMQProducer producer = cluster.producer(group("pull") + "-producer");
        for (int i = 0; i < 40; i++) {
            Message message = message(topic, "pull-" + i);
            message.setTags(i % 2 == 0 ? "even" : "odd");
            producer.send(message);
        }
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group("pull"));
        consumer.setNamesrvAddr(cluster.namesrv);
        consumer.start();
        cluster.closes(consumer::shutdown);
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();

        PullResult result = consumer.pull(queue, "*", 0, 32);
        same(PullStatus.FOUND, result.getPullStatus());
        same(32, result.getMsgFoundList().size());
        same(32L, result.getNextBeginOffset());
        same(0L, result.getMinOffset());
        same(40L, result.getMaxOffset());
        result = consumer.pull(queue, "*", 32, 32);
        same(8, result.getMsgFoundList().size());
        same(40L, result.getNextBeginOffset());
        result = consumer.pull(queue, "*", 40, 32);
        same(PullStatus.NO_NEW_MSG, result.getPullStatus());
        same(40L, result.getNextBeginOffset());
        result = consumer.pull(queue, "*", 1_000, 32);
        same(PullStatus.OFFSET_ILLEGAL, result.getPullStatus());
        same(40L, result.getNextBeginOffset());
        result = consumer.pull(queue, "even", 0, 32);
        same(PullStatus.FOUND, result.getPullStatus());
        same(true, result.getMsgFoundList().stream().allMatch(message -> "even".equals(message.getTags())));
        result = consumer.pull(queue, "none", 0, 32);
        same(PullStatus.NO_MATCHED_MSG, result.getPullStatus());
        same(true, result.getNextBeginOffset() > 0);

        // A pull that is held wakes when the message comes.
        Thread sender = new Thread(() -> {
            Time.sleep(500);
            try {
                producer.send(message(topic, "late"));
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
        sender.start();
        result = consumer.pullBlockIfNotFound(queue, "*", 40, 32);
        sender.join();
        same(PullStatus.FOUND, result.getPullStatus());
        same("late", result.getMsgFoundList().get(0).getKeys());

        same(0L, consumer.fetchConsumeOffset(queue, true));
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, 17, false);
        same(17L, consumer.fetchConsumeOffset(queue, true));
    }

    /** Subscribe, read everything, commit; the next of the group reads only what is new. */
    private void litePull() throws Exception {
        String topic = topic("lite", 4);
        DefaultMQProducer producer = cluster.producer(group("lite") + "-producer");
        Set<String> want = new HashSet<>();
        for (int i = 0; i < 100; i++) {
            producer.send(message(topic, "lite-" + i));
            want.add("lite-" + i);
        }
        DefaultLitePullConsumer first = lite("lite");
        first.subscribe(topic, "*");
        first.start();
        same(want, poll(first, 100));
        // Both commits only note the offsets in the client. A 5.3.3 client was seen to end without sending all of
        // them, so the broker's word is awaited.
        Set<MessageQueue> queues = new HashSet<>(first.fetchMessageQueues(topic));
        Time.await("the committed offsets", () -> {
            first.commitSync();
            first.getOffsetStore().persistAll(queues);
            return cluster.admin.examineConsumeStats(group("lite"), topic).computeTotalDiff() == 0;
        });
        first.shutdown();

        want.clear();
        for (int i = 100; i < 140; i++) {
            producer.send(message(topic, "lite-" + i));
            want.add("lite-" + i);
        }
        DefaultLitePullConsumer second = lite("lite");
        second.subscribe(topic, "*");
        second.start();
        same(want, poll(second, 40));
        second.shutdown();
    }

    /** Without a group: assigned queues, seek, committed offsets, offsets by time. */
    private void liteAssign() throws Exception {
        String topic = topic("assign", 2);
        DefaultMQProducer producer = cluster.producer(group("assign") + "-producer");
        for (int i = 0; i < 40; i++) {
            producer.send(message(topic, "assign-" + i), new MessageQueue(topic, broker(topic), i % 2));
        }
        DefaultLitePullConsumer consumer = lite("assign");
        consumer.setAutoCommit(false);
        consumer.start();
        cluster.closes(consumer::shutdown);
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        same(2, queues.size());
        consumer.assign(queues);
        Set<String> want = new HashSet<>();
        for (int i = 30; i < 40; i++) {
            want.add("assign-" + i);
        }
        // A pull that the assignment has begun may overwrite a seek in the client: it tests and sets in two steps.
        Set<String> got = Set.of();
        for (int attempt = 0; attempt < 5 && !got.equals(want); attempt++) {
            for (MessageQueue queue : queues) {
                consumer.seek(queue, 15);
            }
            got = poll(consumer, 10);
        }
        same(want, got);
        consumer.commitSync();
        for (MessageQueue queue : queues) {
            Time.await("the committed offset", () -> consumer.committed(queue) == 20);
            same(0L, consumer.offsetForTimestamp(queue, 1_000L));
        }
        for (MessageQueue queue : queues) {
            consumer.seekToBegin(queue);
        }
        same(40, poll(consumer, 40).size());
    }

    /** Smallest, largest and earliest, and the offset at a time. */
    private void offsets() throws Exception {
        String topic = topic("offsets", 2);
        DefaultMQProducer producer = cluster.producer(group("offsets") + "-producer");
        MessageQueue queue = new MessageQueue(topic, broker(topic), 1);
        same(0L, cluster.admin.maxOffset(queue));
        same(0L, cluster.admin.minOffset(queue));
        for (int i = 0; i < 5; i++) {
            producer.send(message(topic, "offsets-" + i), queue);
            Time.sleep(30); // store times that differ
        }
        same(5L, cluster.admin.maxOffset(queue));
        same(0L, cluster.admin.minOffset(queue));
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group("offsets"));
        consumer.setNamesrvAddr(cluster.namesrv);
        consumer.start();
        cluster.closes(consumer::shutdown);
        List<MessageExt> messages = consumer.pull(queue, "*", 0, 32).getMsgFoundList();
        same(5, messages.size());
        same(messages.get(0).getStoreTimestamp(), cluster.admin.earliestMsgStoreTime(queue));
        same(0L, cluster.admin.searchOffset(queue, 0));
        for (int i = 0; i < 5; i++) {
            same((long) i, cluster.admin.searchOffset(queue, messages.get(i).getStoreTimestamp()));
        }
    }

    /** A push consumer that comes back goes on where its group stopped. */
    private void resume() throws Exception {
        String topic = topic("resume", 4);
        String group = group("resume");
        DefaultMQProducer producer = cluster.producer(group + "-producer");
        Collection<String> first = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = cluster.consumer(group, topic, "*", 4, message -> first.add(message.getKeys()));
        for (int i = 0; i < 100; i++) {
            producer.send(message(topic, "a-" + i));
        }
        Time.await("100 messages", () -> new HashSet<>(first).size() == 100);
        Time.sleep(200); // the last listener call returns, and with it the last offset is known
        consumer.shutdown();
        for (int i = 0; i < 100; i++) {
            producer.send(message(topic, "b-" + i));
        }
        Collection<String> second = new ConcurrentLinkedQueue<>();
        cluster.consumer(group, topic, "*", 4, message -> second.add(message.getKeys()));
        Time.await("100 more", () -> new HashSet<>(second).size() >= 100);
        Time.sleep(500);
        same(100, first.size());
        same(100, second.size());
        same(true, second.stream().allMatch(key -> key.startsWith("b-")));
    }

    /** Broadcast: every member reads everything. */
    private void broadcast() throws Exception {
        String topic = topic("broadcast", 4);
        List<Set<String>> got = List.of(ConcurrentHashMap.newKeySet(), ConcurrentHashMap.newKeySet());
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (Set<String> mine : got) {
            DefaultMQPushConsumer consumer = cluster.consumerUnstarted(group("broadcast"), message -> mine.add(message.getKeys()));
            // The enum lives in another package in each generation; only its type, unnamed, is common.
            consumer.setMessageModel(Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), "BROADCASTING"));
            consumer.setInstanceName("member-" + System.nanoTime());
            cluster.start(consumer, topic, "*");
            members.add(consumer);
        }
        for (DefaultMQPushConsumer member : members) {
            Time.await("all queues", () -> Cluster.owned(member, topic).size() == 4);
        }
        DefaultMQProducer producer = cluster.producer(group("broadcast") + "-producer");
        for (int i = 0; i < 100; i++) {
            producer.send(message(topic, "all-" + i));
        }
        Time.await("each member to read all", () -> got.get(0).size() == 100 && got.get(1).size() == 100);
    }

    /** A body over 4 MiB that the client lets pass is refused by the broker, and the connection goes on. */
    private void tooLarge() throws Exception {
        String topic = topic("large", 1);
        DefaultMQProducer producer = cluster.producer(group("large") + "-producer");
        producer.setMaxMessageSize(16 << 20);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setRetryTimesWhenSendFailed(0);
        try {
            producer.send(new Message(topic, new byte[(4 << 20) + 1]));
            throw new IllegalStateException("a message over the limit was taken");
        } catch (MQBrokerException error) {
            same(13, error.getResponseCode()); // MESSAGE_ILLEGAL
        }
        same(SendStatus.SEND_OK, producer.send(new Message(topic, new byte[4_000_000])).getSendStatus());
    }

    /** One consumer, two topics, one of them filtered. */
    private void twoTopics() throws Exception {
        String one = topic("two-one", 4);
        String two = topic("two-two", 4);
        Set<String> got = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = cluster.consumerUnstarted(group("two"),
            message -> got.add(message.getTopic() + "/" + message.getKeys()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(two, "x");
        cluster.start(consumer, one, "*");
        DefaultMQProducer producer = cluster.producer(group("two") + "-producer");
        Set<String> want = new TreeSet<>();
        for (int i = 0; i < 40; i++) {
            producer.send(message(one, "m" + i));
            want.add(one + "/m" + i);
            Message tagged = message(two, "m" + i);
            tagged.setTags(i % 2 == 0 ? "x" : "y");
            producer.send(tagged);
            if (i % 2 == 0) {
                want.add(two + "/m" + i);
            }
        }
        Time.await("both topics", () -> got.containsAll(want));
        same(want, new TreeSet<>(got));
    }

    private DefaultLitePullConsumer lite(String name) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group(name));
        consumer.setNamesrvAddr(cluster.namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    private static Set<String> poll(DefaultLitePullConsumer consumer, int count) throws Exception {
        Set<String> got = new HashSet<>();
        AtomicInteger deliveries = new AtomicInteger();
        Time.await(count + " polled messages", () -> {
            consumer.poll(500).forEach(message -> {
                got.add(message.getKeys());
                deliveries.incrementAndGet();
            });
            return got.size() >= count;
        });
        same(count, deliveries.get());
        return got;
    }

    private String topic(String name, int queueCount) throws Exception {
        String topic = prefix + "-" + name;
        cluster.createTopic(topic, queueCount);
        return topic;
    }

    private String group(String name) {
        return prefix + "-" + name + "-group";
    }

    private String broker(String topic) throws Exception {
        return cluster.admin.examineTopicRouteInfo(topic).getQueueDatas().get(0).getBrokerName();
    }

    private static Message message(String topic, String key) {
        return new Message(topic, "", key, Payload.text(key));
    }

    private static void same(Object want, Object got) {
        if (!want.equals(got)) {
            throw new AssertionError("wanted " + want + ", got " + got);
        }
    }
}
