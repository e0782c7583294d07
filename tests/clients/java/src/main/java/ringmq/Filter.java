package ringmq;

import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntPredicate;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.filter.SqlFilter;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/** SQL92 filters: what the broker's own classes make of an expression, and what consumers get through one. */
final class Filter {
    private static final int QUEUE_COUNT = 4;

    /**
     * Lines of {@code --in} are an expression, a tab and {@code name=value;…}, blanks written as \n \t \r \f. The same
     * go to {@code --out} with a tab and the verdict: T, F, N for null, X for an exception, E if it does not compile.
     */
    static Result expressions(Clients.Args args) throws Exception {
        int count = 0;
        try (PrintStream out = new PrintStream(args.text("out"), StandardCharsets.UTF_8)) {
            for (String line : Files.readAllLines(Path.of(args.text("in")), StandardCharsets.UTF_8)) {
                String[] fields = line.split("\t", -1);
                StringBuilder text = new StringBuilder();
                for (String pair : fields[1].split(";")) {
                    text.append(unescaped(pair).replaceFirst("=", "\u0001")).append('\u0002');
                }
                Map<String, String> properties = MessageDecoder.string2messageProperties(text.toString());
                out.println(line + "\t" + verdict(unescaped(fields[0]), properties));
                count++;
            }
        }
        return new Result().put("lines", count);
    }

    private static String verdict(String text, Map<String, String> properties) {
        Expression expression;
        try {
            expression = new SqlFilter().compile(text);
        } catch (Throwable error) {
            return "E";
        }
        try {
            Object value = expression.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return new HashMap<>(properties);
                }
            });
            return value == null ? "N" : value.equals(true) ? "T" : value.equals(false) ? "F" : "not a verdict: " + value;
        } catch (Throwable error) {
            return "X";
        }
    }

    private static String unescaped(String text) {
        return text.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r").replace("\\f", "\f");
    }

    /** Message {@code i} has its number, every other property by rules that {@link #has} repeats. */
    private static Message message(String topic, int i) {
        Message message = new Message(topic, i % 3 == 0 ? "A" : "B", Integer.toString(i), Payload.text("body " + i));
        message.putUserProperty("i", Integer.toString(i));
        message.putUserProperty("kind", i % 2 == 0 ? "even" : "it's odd");
        if (i % 5 != 0) {
            message.putUserProperty("price", Double.toString(i / 2.0));
        }
        message.putUserProperty("区域", "杭州");
        return message;
    }

    /** Push, pull and lite pull consumers get exactly what their expressions say, before and after others came. */
    static Result filters(Clients.Args args) throws Exception {
        String topic = args.text("topic");
        String group = args.text("group");
        int count = args.count("count", 400);
        Result result = new Result();
        try (Cluster cluster = new Cluster(args.namesrv())) {
            cluster.createTopic(topic, QUEUE_COUNT);
            Map<String, IntPredicate> wanted = Map.of(
                "i >= 100 AND i < 200", i -> i >= 100 && i < 200,
                "kind IN ('even') AND price IS NOT NULL AND price < 50.5", i -> i % 2 == 0 && i % 5 != 0 && i / 2.0 < 50.5,
                "price IS NULL OR (TAGS = 'B' AND i BETWEEN 10 AND 20)", i -> i % 5 == 0 || i % 3 != 0 && i >= 10 && i <= 20,
                "kind = 'it''s odd' AND NOT (i > 50)", i -> i % 2 == 1 && i <= 50,
                "KEYS = '7' OR UNIQ_KEY IS NULL", i -> i == 7,
                "i = i AND TRUE", i -> true,
                "nothing > 5", i -> false);
            Map<String, Set<Integer>> got = new ConcurrentHashMap<>();
            Map<String, AtomicInteger> deliveries = new ConcurrentHashMap<>();
            AtomicBoolean failed = new AtomicBoolean();
            int number = 0;
            for (String expression : wanted.keySet()) {
                push(cluster, group + "-" + number++, topic, MessageSelector.bySql(expression), got, deliveries, expression, failed);
            }
            push(cluster, group + "-tag", topic, MessageSelector.byTag("A"), got, deliveries, "tag", null);
            DefaultMQProducer producer = cluster.producer(group + "-producer");
            for (int i = 0; i < count; i++) {
                producer.send(message(topic, i));
            }
            push(cluster, group + "-late", topic, MessageSelector.bySql("i > 390"), got, deliveries, "late", null);
            Time.await("what is wanted", () -> wanted.entrySet().stream().allMatch(
                entry -> got.get(entry.getKey()).size() >= expected(count, entry.getValue()).size())
                && got.get("tag").size() >= (count + 2) / 3 && got.get("late").size() >= count - 391);
            // One message failed at first: it comes again through the retry topic, which has no expression.
            Time.await("the retry", () -> deliveries.get("i >= 100 AND i < 200").get() == 101);
            Time.sleep(1_000);
            for (Map.Entry<String, IntPredicate> entry : wanted.entrySet()) {
                compare(result, entry.getKey(), got.get(entry.getKey()), expected(count, entry.getValue()));
            }
            compare(result, "tag", got.get("tag"), expected(count, i -> i % 3 == 0));
            compare(result, "late", got.get("late"), expected(count, i -> i > 390));
            if (args.number("lite", 1) == 1) {
                compare(result, "lite pull", litePull(cluster, group + "-lite", topic), expected(count, i -> i < 50));
            }
            compare(result, "pull", pull(cluster, group + "-pull", topic), expected(count, i -> i > 350));
        }
        return result;
    }

    /** What a consumer with the expression of {@code --sql} is told when it starts: {@code --code}, {@code --remark}. */
    static Result refusedFilter(Clients.Args args) throws Exception {
        Result result = new Result();
        try (Cluster cluster = new Cluster(args.namesrv())) {
            cluster.createTopic(args.text("topic"), 1);
            DefaultMQPushConsumer consumer = cluster.consumerUnstarted(args.text("group"), message -> { });
            consumer.subscribe(args.text("topic"), MessageSelector.bySql(args.text("sql")));
            try {
                consumer.start();
                consumer.shutdown();
                result.wrong("it started");
            } catch (MQClientException error) {
                result.expect("code", error.getResponseCode(), args.number("code", 0)).put("told", error.getErrorMessage());
                if (!error.getErrorMessage().contains(args.text("remark"))) {
                    result.wrong("not the remark");
                }
            }
        }
        return result;
    }

    private static void push(
        Cluster cluster, String group, String topic, MessageSelector selector, Map<String, Set<Integer>> got,
        Map<String, AtomicInteger> deliveries, String name, AtomicBoolean failed) throws Exception {
        Set<Integer> seen = new ConcurrentSkipListSet<>();
        AtomicInteger delivered = new AtomicInteger();
        got.put(name, seen);
        deliveries.put(name, delivered);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(cluster.namesrv);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                seen.add(Integer.parseInt(message.getUserProperty("i")));
                delivered.incrementAndGet();
                boolean fails = name.startsWith("i >= 100") && message.getKeys().equals("150") && !failed.getAndSet(true);
                if (fails) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.subscribe(topic, selector);
        consumer.start();
        cluster.closes(consumer::shutdown);
        Time.await(group + " to own its queues", () -> Cluster.owned(consumer, topic).size() == QUEUE_COUNT);
    }

    private static Set<Integer> litePull(Cluster cluster, String group, String topic) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(cluster.namesrv);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, MessageSelector.bySql("i < 50"));
        consumer.start();
        cluster.closes(consumer::shutdown);
        Set<Integer> seen = new TreeSet<>();
        Time.await("50 messages by lite pull", () -> {
            consumer.poll(100).forEach(message -> seen.add(Integer.parseInt(message.getUserProperty("i"))));
            return seen.size() >= 50;
        });
        consumer.poll(1_000).forEach(message -> seen.add(Integer.parseInt(message.getUserProperty("i"))));
        return seen;
    }

    @SuppressWarnings("deprecation")
    private static Set<Integer> pull(Cluster cluster, String group, String topic) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(cluster.namesrv);
        consumer.setInstanceName(group);
        consumer.start();
        cluster.closes(consumer::shutdown);
        Set<Integer> seen = new TreeSet<>();
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(topic);
        // A pull tells the client where the broker is, and the answer to a heartbeat that it is new enough for expressions;
        // the next of these would be in 30 s.
        Time.await("the broker's version", () -> {
            try {
                consumer.pull(queues.iterator().next(), MessageSelector.bySql("TRUE"), 0, 1);
                return true;
            } catch (MQClientException error) {
                consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
                return false;
            }
        });
        for (MessageQueue queue : queues) {
            PullResult pulled = consumer.pull(queue, MessageSelector.bySql("i > 350"), 0, 32);
            while (pulled.getPullStatus() != PullStatus.NO_NEW_MSG) {
                if (pulled.getMsgFoundList() != null) {
                    pulled.getMsgFoundList().forEach(message -> seen.add(Integer.parseInt(message.getUserProperty("i"))));
                }
                pulled = consumer.pull(queue, MessageSelector.bySql("i > 350"), pulled.getNextBeginOffset(), 32);
            }
        }
        return seen;
    }

    private static Set<Integer> expected(int count, IntPredicate wanted) {
        Set<Integer> all = new TreeSet<>();
        for (int i = 0; i < count; i++) {
            if (wanted.test(i)) {
                all.add(i);
            }
        }
        return all;
    }

    private static void compare(Result result, String name, Set<Integer> got, Set<Integer> want) {
        result.expect(name, got.size(), want.size());
        if (!got.equals(want)) {
            result.wrong(name + " gave " + got);
        }
    }
}
