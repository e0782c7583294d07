package ringmq;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.constant.PermName;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** One name server and what stands behind it: clients that are started and topics that are made in one call. */
final class Cluster implements AutoCloseable {
    final String namesrv;
    final DefaultMQAdminExt admin;
    private final List<Runnable> closers = new ArrayList<>();

    interface Listener {
        void on(MessageExt message);
    }

    Cluster(String namesrv) throws Exception {
        this.namesrv = namesrv;
        admin = new DefaultMQAdminExt();
        admin.setInstanceName("admin-" + System.nanoTime());
        admin.setNamesrvAddr(namesrv);
        admin.start();
        closers.add(admin::shutdown);
    }

    List<String> brokerAddresses() throws Exception {
        List<String> addresses = new ArrayList<>();
        for (var broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            addresses.add(broker.selectBrokerAddr());
        }
        return addresses;
    }

    /** Makes the topic on every broker and waits until the name server routes all its queues. */
    void createTopic(String topic, int queueCount) throws Exception {
        List<String> addresses = brokerAddresses();
        if (addresses.isEmpty()) {
            throw new IllegalStateException("the name server knows no broker");
        }
        for (String address : addresses) {
            admin.createAndUpdateTopicConfig(address, new TopicConfig(topic, queueCount, queueCount, PermName.PERM_READ | PermName.PERM_WRITE));
        }
        Time.await("a route for " + topic, () -> queueCount(topic) == queueCount * addresses.size());
    }

    int queueCount(String topic) {
        try {
            int count = 0;
            for (var queues : admin.examineTopicRouteInfo(topic).getQueueDatas()) {
                count += queues.getWriteQueueNums();
            }
            return count;
        } catch (Exception error) {
            return 0;
        }
    }

    DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("producer-" + System.nanoTime());
        // A slow machine must not turn into a second send of the same message.
        producer.setSendMsgTimeout(60_000);
        producer.start();
        closers.add(producer::shutdown);
        return producer;
    }

    DefaultMQPushConsumer consumerUnstarted(String group, Listener listener) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(listener::on);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    void start(DefaultMQPushConsumer consumer, String topic, String tags) throws Exception {
        consumer.subscribe(topic, tags);
        consumer.start();
        closers.add(consumer::shutdown);
    }

    /** A push consumer that already owns {@code queueCount} queues of the topic. */
    DefaultMQPushConsumer consumer(String group, String topic, String tags, int queueCount, Listener listener) throws Exception {
        DefaultMQPushConsumer consumer = consumerUnstarted(group, listener);
        start(consumer, topic, tags);
        Time.await(group + " to own " + queueCount + " queues", () -> owned(consumer, topic).size() == queueCount);
        return consumer;
    }

    @SuppressWarnings("deprecation")
    static TreeSet<Integer> owned(DefaultMQPushConsumer consumer, String topic) {
        TreeSet<Integer> queues = new TreeSet<>();
        for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (queue.getTopic().equals(topic)) {
                queues.add(queue.getQueueId());
            }
        }
        return queues;
    }

    /** The same queues as {@link #owned}. */
    @SuppressWarnings("deprecation")
    static Set<MessageQueue> queues(DefaultMQPushConsumer consumer, String topic) {
        Set<MessageQueue> queues = new HashSet<>(consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet());
        queues.removeIf(queue -> !queue.getTopic().equals(topic));
        return queues;
    }

    void closes(Runnable closer) {
        closers.add(closer);
    }

    @Override
    public void close() {
        for (int i = closers.size() - 1; i >= 0; i--) {
            closers.get(i).run();
        }
    }
}
