package ringmq;

import java.util.Arrays;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * mqadmin, several commands in one process because a virtual machine for each would cost more than the commands.
 *
 * <p>{@code mqadmin --namesrv A -- clusterList ';' topicRoute -t T} runs the very {@code main0} that the tool's script
 * runs, each with {@code -n A} added, after a line {@code #### clusterList}. mqadmin ends with 0 whatever happens, so
 * the caller reads what it printed. {@code @messages T G N} is ours: it sends N messages to T and lets group G read
 * them, and G stays online until the end, so that the progress commands have something to show. {@code @send T K} sends
 * one message with keys K (a {@code +} stands for a blank) and prints {@code SENT unique-id offset-id};
 * {@code @traced T K} does the same and lets the client write its trace. {@code @view T I} prints {@code VIEWED keys}
 * of the message with that id of either kind: the tool's own queryMsgByUniqueKey works once in a process. {@code @await T} waits for a route: a broker
 * of 5.x says that it is ready before it registers.
 */
final class Admin {
    static Result run(Clients.Args args) throws Exception {
        System.setErr(System.out); // a stack trace belongs to the command that failed
        try (Cluster cluster = new Cluster(args.namesrv())) {
            int count = 0;
            for (int at = 0; at < args.rest.length; count++) {
                int end = at;
                while (end < args.rest.length && !args.rest[end].equals(";")) {
                    end++;
                }
                String[] command = Arrays.copyOfRange(args.rest, at, end);
                at = end + 1;
                System.out.println("#### " + String.join(" ", command));
                if (command[0].equals("@messages")) {
                    messages(cluster, command[1], command[2], Integer.parseInt(command[3]));
                } else if (command[0].equals("@send")) {
                    send(cluster.producer("query-producer"), command[1], command[2]);
                } else if (command[0].equals("@traced")) {
                    DefaultMQProducer producer = new DefaultMQProducer("traced-producer", (RPCHook) null, true, null);
                    producer.setNamesrvAddr(args.namesrv());
                    producer.start();
                    send(producer, command[1], command[2]);
                    // The trace is sent behind the message's back, and a shutdown may overtake it.
                    Time.await("a stored trace", () -> cluster.admin.examineTopicStats("RMQ_SYS_TRACE_TOPIC")
                        .getOffsetTable().values().stream().anyMatch(queue -> queue.getMaxOffset() > 0));
                    producer.shutdown();
                } else if (command[0].equals("@await")) {
                    Time.await("a route for " + command[1], () -> cluster.queueCount(command[1]) > 0);
                } else if (command[0].equals("@view")) {
                    System.out.println("VIEWED " + cluster.admin.viewMessage(command[1], command[2]).getKeys());
                } else {
                    String[] full = Arrays.copyOf(command, command.length + 2);
                    full[command.length] = "-n";
                    full[command.length + 1] = args.namesrv();
                    MQAdminStartup.main0(full, null);
                }
            }
            System.out.println("####");
            return new Result().put("commands", count);
        }
    }

    private static void send(DefaultMQProducer producer, String topic, String keys) throws Exception {
        SendResult sent = producer.send(new Message(topic, "tag", keys.replace('+', ' '), Payload.text("of " + keys)));
        System.out.println("SENT " + sent.getMsgId() + " " + sent.getOffsetMsgId());
    }

    @SuppressWarnings("deprecation")
    private static void messages(Cluster cluster, String topic, String group, int count) throws Exception {
        Set<String> seen = ConcurrentHashMap.newKeySet();
        var consumer = cluster.consumer(group, topic, "*", cluster.queueCount(topic), message -> seen.add(message.getKeys()));
        DefaultMQProducer producer = cluster.producer(group + "-producer");
        for (int i = 0; i < count; i++) {
            producer.send(new Message(topic, "", Integer.toString(i), Payload.text("for mqadmin")));
        }
        Time.await("all messages", () -> seen.size() == count);
        // The client tells the broker its offsets every 5 s, one-way; the commands that follow want them now.
        Time.await("the offsets of " + group, () -> {
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            return cluster.admin.examineConsumeStats(group, topic).computeTotalDiff() == 0;
        });
    }
}
