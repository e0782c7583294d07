package ringmq;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** What the broker does with a message between its send and its consumption: order, retries, delays, transactions. */
final class Messaging {
    private static final int QUEUE_COUNT = 8;

    /**
     * Orderly listeners: 64 keys over 8 queues, a second consumer joins while messages flow and then dies without a
     * word. No key may go back.
     */
    static Result orderly(Clients.Args args) throws Exception {
        String topic = args.text("topic");
        String group = args.text("group");
        int perKey = args.count("count", 50);
        int keyCount = 64;
        int[] last = new int[keyCount];
        AtomicInteger inversions = new AtomicInteger();
        AtomicInteger retried = new AtomicInteger();
        AtomicInteger bySecond = new AtomicInteger();
        Set<String> seen = ConcurrentHashMap.newKeySet();
        Set<String> failed = ConcurrentHashMap.newKeySet();
        try (Cluster cluster = new Cluster(args.namesrv())) {
            cluster.createTopic(topic, QUEUE_COUNT);
            DefaultMQPushConsumer first = orderlyConsumer(cluster, group, topic, last, inversions, seen, failed, retried, null);
            Time.await("the first consumer to own all queues", () -> Cluster.owned(first, topic).size() == QUEUE_COUNT);
            DefaultMQProducer producer = cluster.producer(group + "-producer");
            DefaultMQPushConsumer second = null;
            for (int i = 1; i <= perKey; i++) {
                for (int key = 0; key < keyCount; key++) {
                    Message message = new Message(topic, "", Integer.toString(key), Payload.text(key + ":" + i));
                    producer.send(message, (queues, m, k) -> queues.get((Integer) k % queues.size()), key);
                }
                if (i == perKey / 3) {
                    second = orderlyConsumer(cluster, group, topic, last, inversions, seen, failed, retried, bySecond);
                    DefaultMQPushConsumer joined = second;
                    Time.await("the second consumer to own half", () -> Cluster.owned(joined, topic).size() == QUEUE_COUNT / 2);
                    // It owns them when the first has given up its locks.
                    Time.sleep(1_000);
                }
                if (i == perKey * 2 / 3) {
                    second.shutdown();
                }
            }
            Time.await("all messages", () -> seen.size() == keyCount * perKey);
            return new Result()
                .expect("seen", seen.size(), keyCount * perKey)
                .expect("inversions", inversions.get(), 0)
                .expect("failed_once", failed.size(), keyCount)
                .put("by_second", bySecond.get())
                .put("retried", retried.get());
        }
    }

    private static DefaultMQPushConsumer orderlyConsumer(
        Cluster cluster, String group, String topic, int[] last, AtomicInteger inversions, Set<String> seen,
        Set<String> failed, AtomicInteger retried, AtomicInteger count) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(cluster.namesrv);
        consumer.setInstanceName("orderly-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String[] parts = new String(message.getBody()).split(":");
                int key = Integer.parseInt(parts[0]);
                int number = Integer.parseInt(parts[1]);
                // Each key's fifth message fails once: its queue waits for it.
                if (number == 5 && failed.add(parts[0])) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                if (message.getReconsumeTimes() > 0) {
                    retried.incrementAndGet();
                }
                synchronized (last) {
                    // A second delivery repeats a stretch from its beginning, it never goes back within one.
                    if (seen.add(message.getKeys() + ":" + number)) {
                        if (number != last[key] + 1) {
                            inversions.incrementAndGet();
                        }
                        last[key] = number;
                    }
                }
                if (count != null) {
                    count.incrementAndGet();
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        cluster.start(consumer, topic, "*");
        return consumer;
    }

    /**
     * One consumer stays, others of its group join and leave while messages flow. Every message is consumed; those that
     * were in hand when a queue changed its owner may come twice.
     */
    static Result joins(Clients.Args args) throws Exception {
        String topic = args.text("topic");
        String group = args.text("group");
        int count = args.count("count", 50_000);
        int joinCount = 4;
        AtomicIntegerArray times = new AtomicIntegerArray(count);
        AtomicInteger seen = new AtomicInteger();
        AtomicInteger byJoined = new AtomicInteger();
        Cluster.Listener see = message -> {
            if (times.getAndIncrement(Integer.parseInt(new String(message.getBody()))) == 0) {
                seen.incrementAndGet();
            }
        };
        try (Cluster cluster = new Cluster(args.namesrv())) {
            cluster.createTopic(topic, QUEUE_COUNT);
            DefaultMQPushConsumer stays = cluster.consumer(group, topic, "*", QUEUE_COUNT, see);
            DefaultMQProducer producer = cluster.producer(group + "-producer");
            AtomicInteger next = new AtomicInteger();
            // How many may be sent: they flow while members come and go.
            AtomicInteger share = new AtomicInteger();
            Thread pace = new Thread(() -> {
                while (share.addAndGet(40) < count) {
                    Time.sleep(10);
                }
            });
            pace.setDaemon(true);
            pace.start();
            List<Thread> senders = new ArrayList<>();
            AtomicInteger failed = new AtomicInteger();
            for (int i = 0; i < 8; i++) {
                Thread sender = new Thread(() -> {
                    for (int number = next.getAndIncrement(); number < count; number = next.getAndIncrement()) {
                        while (number >= share.get()) {
                            Time.sleep(1);
                        }
                        try {
                            producer.send(new Message(topic, Payload.text(Integer.toString(number))));
                        } catch (Exception error) {
                            error.printStackTrace();
                            failed.incrementAndGet();
                        }
                    }
                });
                sender.start();
                senders.add(sender);
            }
            for (int join = 1; join <= joinCount; join++) {
                DefaultMQPushConsumer joined = cluster.consumerUnstarted(group, message -> {
                    see.on(message);
                    byJoined.incrementAndGet();
                });
                joined.setInstanceName("joined-" + join);
                cluster.start(joined, topic, "*");
                Time.await("the queues to be shared", () ->
                    Cluster.owned(joined, topic).size() == QUEUE_COUNT / 2 && Cluster.owned(stays, topic).size() == QUEUE_COUNT / 2);
                int before = byJoined.get();
                Time.await("the one that joined to consume", () -> byJoined.get() > before + 1_000 || next.get() >= count);
                joined.shutdown();
                Time.await("all queues to come back", () -> Cluster.owned(stays, topic).size() == QUEUE_COUNT);
            }
            for (Thread sender : senders) {
                sender.join();
            }
            Time.await("all messages", () -> seen.get() == count);
            int repeated = 0;
            for (int i = 0; i < count; i++) {
                repeated += Math.max(0, times.get(i) - 1);
            }
            return new Result()
                .expect("failed", failed.get(), 0)
                .expect("seen", seen.get(), count)
                .put("repeated", repeated)
                .put("by_joined", byJoined.get());
        }
    }

    /** Messages that a consumer never can handle go through all their retries and end as dead letters. */
    static Result retries(Clients.Args args) throws Exception {
        String topic = args.text("topic");
        String group = args.text("group");
        int times = args.count("times", 3);
        int count = 20;
        Map<String, List<Integer>> tries = new ConcurrentHashMap<>();
        AtomicInteger wrong = new AtomicInteger();
        AtomicInteger dead = new AtomicInteger();
        AtomicInteger later = new AtomicInteger();
        try (Cluster cluster = new Cluster(args.namesrv())) {
            cluster.createTopic(topic, 4);
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
            consumer.setNamesrvAddr(cluster.namesrv);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setMaxReconsumeTimes(times);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                MessageExt message = messages.get(0);
                // The client shows the topic and keeps the tags of the first send.
                if (!message.getTopic().equals(topic) || !"tag".equals(message.getTags())) {
                    wrong.incrementAndGet();
                }
                tries.computeIfAbsent(message.getKeys(), key -> new ArrayList<>()).add(message.getReconsumeTimes());
                if (message.getKeys().startsWith("twice") && message.getReconsumeTimes() == 2) {
                    later.incrementAndGet();
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                }
                if (message.getKeys().startsWith("dead")) {
                    context.setDelayLevelWhenNextConsume(-1);
                }
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
            cluster.start(consumer, topic, "tag");
            DefaultMQProducer producer = cluster.producer(group + "-producer");
            for (int i = 0; i < count; i++) {
                for (String kind : new String[] {"twice", "never", "dead"}) {
                    producer.send(new Message(topic, "tag", kind + i, Payload.text("body " + kind + i)));
                }
            }
            Time.await("what works at the third attempt", () -> later.get() == count);
            Time.await("the topic of the dead letters", () -> cluster.queueCount("%DLQ%" + group) == 1);
            DefaultMQPushConsumer letters = cluster.consumerUnstarted(group + "-letters", message -> {
                String body = new String(message.getBody());
                boolean isRight = body.equals("body " + message.getKeys()) && topic.equals(message.getProperty(MessageConst.PROPERTY_RETRY_TOPIC));
                if (!isRight || message.getKeys().startsWith("twice")) {
                    wrong.incrementAndGet();
                }
                dead.incrementAndGet();
            });
            cluster.start(letters, "%DLQ%" + group, "*");
            Time.await("all dead letters", () -> dead.get() == 2 * count);
            Time.sleep(1_500);
            int odd = 0;
            for (Map.Entry<String, List<Integer>> entry : tries.entrySet()) {
                int want = entry.getKey().startsWith("twice") ? 3 : entry.getKey().startsWith("dead") ? 1 : times + 1;
                for (int i = 0; i < want; i++) {
                    odd += entry.getValue().size() == want && entry.getValue().get(i) == i ? 0 : 1;
                }
            }
            return new Result()
                .expect("messages", tries.size(), 3 * count)
                .expect("dead", dead.get(), 2 * count)
                .expect("odd_tries", odd, 0)
                .expect("wrong", wrong.get(), 0);
        }
    }

    /** Levels 1 to 3, which the broker was told are 1, 2 and 3 s: at their time, in their order, to their tags. */
    static Result delays(Clients.Args args) throws Exception {
        String topic = args.text("topic");
        String group = args.text("group");
        int count = 60;
        AtomicInteger early = new AtomicInteger();
        AtomicInteger wrong = new AtomicInteger();
        Set<String> seen = ConcurrentHashMap.newKeySet();
        List<Long> lateness = new ArrayList<>();
        Map<Long, Integer> byOffset = new ConcurrentSkipListMap<>();
        try (Cluster cluster = new Cluster(args.namesrv())) {
            cluster.createTopic(topic, 1);
            cluster.consumer(group, topic, "even || odd", 1, message -> {
                int i = Integer.parseInt(message.getKeys());
                int level = i % 3 + 1;
                long late = message.getStoreTimestamp() - message.getBornTimestamp() - level * 1000L;
                early.addAndGet(late < 0 ? 1 : 0);
                boolean isRight = new String(message.getBody()).equals("delay " + i) && seen.add(message.getKeys());
                byOffset.put(message.getQueueOffset(), i);
                wrong.addAndGet(isRight ? 0 : 1);
                synchronized (lateness) {
                    lateness.add(late);
                }
            });
            DefaultMQProducer producer = cluster.producer(group + "-producer");
            for (int i = 0; i < count; i++) {
                Message message = new Message(topic, i % 2 == 0 ? "even" : "odd", Integer.toString(i), Payload.text("delay " + i));
                message.setDelayTimeLevel(i % 3 + 1);
                if (producer.send(message).getSendStatus() != SendStatus.SEND_OK) {
                    wrong.incrementAndGet();
                }
            }
            Time.await("all delayed messages", () -> seen.size() == count);
            lateness.sort(null);
            int[] last = {-1, -1, -1};
            int inversions = 0;
            for (int i : byOffset.values()) {
                inversions += i > last[i % 3] ? 0 : 1;
                last[i % 3] = i;
            }
            return new Result()
                .expect("seen", seen.size(), count)
                .expect("early", early.get(), 0)
                .expect("inversions", inversions, 0)
                .expect("wrong", wrong.get(), 0)
                .put("late_ms_max", lateness.get(count - 1));
        }
    }

    /**
     * A transaction listener that commits, rolls back, or does not know until it is asked, and then commits, rolls back
     * or still does not know; the first of its producers dies while some are open.
     */
    static Result transactions(Clients.Args args) throws Exception {
        String topic = args.text("topic");
        String group = args.text("group");
        int count = args.count("count", 60);
        Map<String, AtomicInteger> checks = new ConcurrentHashMap<>();
        AtomicInteger wrong = new AtomicInteger();
        AtomicInteger twice = new AtomicInteger();
        Set<String> seen = ConcurrentHashMap.newKeySet();
        try (Cluster cluster = new Cluster(args.namesrv())) {
            cluster.createTopic(topic, 4);
            cluster.consumer(group + "-reader", topic, "*", 4, message -> {
                twice.addAndGet(seen.add(message.getKeys()) ? 0 : 1);
                boolean isRight = new String(message.getBody()).equals("tx " + message.getKeys()) && !isRollback(message.getKeys());
                wrong.addAndGet(isRight ? 0 : 1);
            });
            TransactionMQProducer first = transactionProducer(cluster, group, topic, checks, wrong);
            for (int i = 0; i < count; i++) {
                String key = Integer.toString(i);
                var sent = first.sendMessageInTransaction(new Message(topic, "tag", key, Payload.text("tx " + key)), null);
                if (sent.getSendStatus() != SendStatus.SEND_OK) {
                    wrong.incrementAndGet();
                }
                if (i == count / 2) {
                    first.shutdown();
                    first = transactionProducer(cluster, group, topic, checks, wrong);
                }
            }
            int committed = 0;
            for (int i = 0; i < count; i++) {
                committed += isRollback(Integer.toString(i)) ? 0 : 1;
            }
            int want = committed;
            Time.await("all committed messages", () -> seen.size() == want);
            Time.await("all checks", () -> checks.size() == (count + 1) / 2);
            Time.sleep(3_000);
            int unasked = 0;
            for (Map.Entry<String, AtomicInteger> check : checks.entrySet()) {
                // Those that still did not know are asked once more.
                unasked += check.getValue().get() == (Integer.parseInt(check.getKey()) % 8 == 4 ? 2 : 1) ? 0 : 1;
            }
            return new Result()
                .expect("seen", seen.size(), want)
                .expect("twice", twice.get(), 0)
                .expect("wrong", wrong.get(), 0)
                .expect("checked", checks.size(), (count + 1) / 2)
                .expect("odd_checks", unasked, 0);
        }
    }

    /** Requests between clients, offsets that an operator moves and copies, a message that a client is given directly. */
    static Result replies(Clients.Args args) throws Exception {
        String topic = args.text("topic");
        String group = args.text("group");
        int count = 50;
        AtomicInteger wrong = new AtomicInteger();
        AtomicInteger consumed = new AtomicInteger();
        AtomicInteger answered = new AtomicInteger();
        try (Cluster cluster = new Cluster(args.namesrv())) {
            cluster.createTopic(topic, 4);
            DefaultMQProducer answers = cluster.producer(group + "-answers");
            DefaultMQPushConsumer consumer = cluster.consumer(group, topic, "*", 4, message -> {
                consumed.incrementAndGet();
                if (message.getProperty(MessageConst.PROPERTY_MESSAGE_REPLY_TO_CLIENT) == null) {
                    return;
                }
                try {
                    byte[] body = Payload.text("answer to " + new String(message.getBody()));
                    answers.send(org.apache.rocketmq.client.utils.MessageUtil.createReplyMessage(message, body), 30_000);
                } catch (Exception error) {
                    error.printStackTrace();
                    wrong.incrementAndGet();
                }
            });
            DefaultMQProducer asker = new DefaultMQProducer(group + "-asker");
            asker.setNamesrvAddr(cluster.namesrv);
            asker.setInstanceName("asker-" + System.nanoTime());
            asker.setHeartbeatBrokerInterval(500);
            asker.start();
            cluster.closes(asker::shutdown);
            // A reply finds its way by the asker's heartbeat, which may be later than the first request.
            asker.send(new Message(topic + "-first", Payload.text("where are the brokers?")));
            Time.await("the asker to be known", () -> isKnown(cluster, group + "-asker", topic + "-first"));
            for (int i = 0; i < count; i++) {
                String want = "answer to question " + i;
                // The client 5.3.3 takes a sent request for an answered one: its blocking call returns at once, its
                // callback is told nothing first and the answer later.
                asker.request(new Message(topic, Payload.text("question " + i)), new RequestCallback() {
                    @Override
                    public void onSuccess(Message answer) {
                        if (answer != null) {
                            answered.addAndGet(new String(answer.getBody()).equals(want) ? 1 : 0);
                        }
                    }

                    @Override
                    public void onException(Throwable error) {
                        error.printStackTrace();
                        wrong.incrementAndGet();
                    }
                }, 30_000);
            }
            Time.await("all answers", () -> answered.get() == count);

            // A message once more, by hand.
            var sent = asker.send(new Message(topic, Payload.text("by hand")));
            Time.await("the message", () -> consumed.get() == count + 1);
            var direct = cluster.admin.consumeMessageDirectly(group, consumer.buildMQClientId(), topic, sent.getOffsetMsgId());
            boolean isDirect = direct.getConsumeResult().name().equals("CR_SUCCESS") && consumed.get() == count + 2;

            // How far it is, by its own word.
            var status = cluster.admin.getConsumeStatus(topic, group, "").get(consumer.buildMQClientId());
            boolean isTold = status != null && status.keySet().containsAll(Cluster.queues(consumer, topic));

            // Back to the beginning: the client waits 10 s before it goes on.
            consumer.getDefaultMQPushConsumerImpl().getOffsetStore().persistAll(Cluster.queues(consumer, topic));
            cluster.admin.resetOffsetByTimestamp(topic, group, 0, true);
            Time.await("everything once more", () -> consumed.get() >= 2 * count + 3);
            // The same for a group that nobody is in, after it got the offsets of the first.
            cluster.admin.cloneGroupOffset(group, group + "-copy", topic, true);
            return new Result()
                .expect("wrong", wrong.get(), 0)
                .expect("directly", isDirect ? 1 : 0, 1)
                .expect("told", isTold ? 1 : 0, 1)
                .expect("consumed", consumed.get(), 2 * count + 3);
        }
    }

    private static boolean isKnown(Cluster cluster, String group, String topic) {
        try {
            return !cluster.admin.examineProducerConnectionInfo(group, topic).getConnectionSet().isEmpty();
        } catch (Exception error) {
            return false;
        }
    }

    private static boolean isRollback(String key) {
        int i = Integer.parseInt(key);
        return i % 4 == 1 || i % 8 == 2;
    }

    /** Odd ones end at once, even ones when they are asked. */
    private static TransactionMQProducer transactionProducer(
        Cluster cluster, String group, String topic, Map<String, AtomicInteger> checks, AtomicInteger wrong) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setNamesrvAddr(cluster.namesrv);
        producer.setInstanceName("transactions-" + System.nanoTime());
        producer.setSendMsgTimeout(60_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                if (Integer.parseInt(message.getKeys()) % 2 == 0) {
                    return LocalTransactionState.UNKNOW;
                }
                return isRollback(message.getKeys()) ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                int times = checks.computeIfAbsent(message.getKeys(), key -> new AtomicInteger()).incrementAndGet();
                boolean isRight = message.getTopic().equals(topic) && new String(message.getBody()).equals("tx " + message.getKeys());
                wrong.addAndGet(isRight ? 0 : 1);
                if (Integer.parseInt(message.getKeys()) % 8 == 4 && times == 1) {
                    return LocalTransactionState.UNKNOW;
                }
                return isRollback(message.getKeys()) ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        cluster.closes(producer::shutdown);
        return producer;
    }
}
