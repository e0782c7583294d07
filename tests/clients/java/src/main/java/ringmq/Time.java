package ringmq;

import java.util.concurrent.Callable;

/** Waiting for a condition. The bound only ends a hang; no test measures with it. */
final class Time {
    static final long WAIT_MS_MAX = 90_000;

    static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    static boolean reached(long waitMsMax, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + waitMsMax * 1_000_000;
        while (!condition.call()) {
            if (System.nanoTime() > end) {
                return false;
            }
            sleep(20);
        }
        return true;
    }

    static void await(String what, Callable<Boolean> condition) throws Exception {
        if (!reached(WAIT_MS_MAX, condition)) {
            throw new IllegalStateException("still waiting after " + WAIT_MS_MAX + " ms for: " + what);
        }
    }
}
