package ringmq;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

/**
 * The official Java client as a test program: {@code java -cp 'clients.jar:lib/*' ringmq.Clients COMMAND --name value …}.
 *
 * <p>Every command prints one line {@code RESULT {json}} and ends with 0 when all it saw was right, 1 when
 * something was wrong, 2 when it broke, and 3 when {@code --timeout} seconds passed first.
 */
public final class Clients {
    public static void main(String[] argv) {
        if (argv.length == 0) {
            System.err.println("roundtrip | features | rebalance | produce | consume | resume | orderly | joins | retries | delays | transactions | replies | expressions | filters | refused-filter | mqadmin");
            System.exit(2);
        }
        Args args = new Args(Arrays.copyOfRange(argv, 1, argv.length));
        Thread watchdog = new Thread(() -> halt(args.number("timeout", 240)), "watchdog");
        watchdog.setDaemon(true);
        watchdog.start();
        int code = 2;
        try {
            Result result = switch (argv[0]) {
                case "roundtrip" -> Roundtrip.run(args);
                case "features" -> Features.run(args);
                case "rebalance" -> Rebalance.run(args);
                case "produce" -> Durable.produce(args);
                case "consume" -> Durable.consume(args);
                case "resume" -> Durable.resume(args);
                case "orderly" -> Messaging.orderly(args);
                case "joins" -> Messaging.joins(args);
                case "retries" -> Messaging.retries(args);
                case "delays" -> Messaging.delays(args);
                case "transactions" -> Messaging.transactions(args);
                case "replies" -> Messaging.replies(args);
                case "expressions" -> Filter.expressions(args);
                case "filters" -> Filter.filters(args);
                case "refused-filter" -> Filter.refusedFilter(args);
                case "mqadmin" -> Admin.run(args);
                default -> throw new IllegalArgumentException("unknown command " + argv[0]);
            };
            System.out.println("RESULT " + result.json());
            code = result.isOk() ? 0 : 1;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        System.out.flush();
        // Client threads that are not daemons must not keep a finished program alive.
        Runtime.getRuntime().halt(code);
    }

    private static void halt(long seconds) {
        Time.sleep(seconds * 1000);
        System.err.println("no end after " + seconds + " s; where the threads are:");
        for (Map.Entry<Thread, StackTraceElement[]> entry : Thread.getAllStackTraces().entrySet()) {
            if (!entry.getKey().isDaemon() || entry.getKey().getName().equals("main")) {
                System.err.println(entry.getKey());
                for (StackTraceElement frame : entry.getValue()) {
                    System.err.println("    " + frame);
                }
            }
        }
        System.err.flush();
        Runtime.getRuntime().halt(3);
    }

    /** {@code --name value} pairs; words before the first name, or after {@code --}, are the rest. */
    static final class Args {
        private final Map<String, String> named = new HashMap<>();
        final String[] rest;

        Args(String[] argv) {
            int at = 0;
            while (at < argv.length && argv[at].startsWith("--") && argv[at].length() > 2) {
                if (at + 1 == argv.length) {
                    throw new IllegalArgumentException(argv[at] + " has no value");
                }
                named.put(argv[at].substring(2), argv[at + 1]);
                at += 2;
            }
            if (at < argv.length && argv[at].equals("--")) {
                at++;
            }
            rest = Arrays.copyOfRange(argv, at, argv.length);
        }

        String text(String name) {
            String value = named.get(name);
            if (value == null) {
                throw new IllegalArgumentException("--" + name + " is missing");
            }
            return value;
        }

        String text(String name, String otherwise) {
            return named.getOrDefault(name, otherwise);
        }

        long number(String name, long otherwise) {
            String value = named.get(name);
            return value == null ? otherwise : Long.parseLong(value);
        }

        int count(String name, int otherwise) {
            return Math.toIntExact(number(name, otherwise));
        }

        String namesrv() {
            return text("namesrv");
        }
    }
}
