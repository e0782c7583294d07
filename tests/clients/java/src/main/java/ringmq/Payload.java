package ringmq;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Random;
import java.util.SplittableRandom;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Messages that one seed brings back: message {@code i} always has the same body, keys, tag and property.
 *
 * <p>Sizes are log-uniform from 1 B to 1 MiB, {@code bigCount} of them uniform from 1 to 3.9 MiB. Even messages
 * are noise, odd ones are text that zlib shrinks, so that both ends of the client's compression are exercised.
 */
final class Payload {
    private static final int SMALL_BYTES_MAX = 1 << 20;
    private static final int BIG_BYTES_MAX = (int) (3.9 * (1 << 20));
    static final String INDEX = "index";
    static final String NOTE = "note";

    final int[] bodyBytes;
    final long totalBytes;
    private final long seed;

    Payload(long seed, int count, int bigCount, long totalBytesMax) {
        if (bigCount > count) {
            throw new IllegalArgumentException("more big messages than messages");
        }
        this.seed = seed;
        Random random = new Random(seed);
        bodyBytes = new int[count];
        for (int i = 0; i < count; i++) {
            bodyBytes[i] = (int) Math.exp(random.nextDouble() * Math.log(SMALL_BYTES_MAX));
        }
        for (int left = bigCount; left > 0; ) {
            int i = random.nextInt(count);
            if (bodyBytes[i] < SMALL_BYTES_MAX) {
                bodyBytes[i] = SMALL_BYTES_MAX + random.nextInt(BIG_BYTES_MAX - SMALL_BYTES_MAX);
                left--;
            }
        }
        long total = 0;
        for (int bytes : bodyBytes) {
            total += bytes;
        }
        if (total > totalBytesMax) {
            throw new IllegalArgumentException(total + " bytes in all, limit " + totalBytesMax);
        }
        totalBytes = total;
    }

    Message message(String topic, int i) {
        Message message = new Message(topic, tag(i), keys(i), body(i));
        message.putUserProperty(INDEX, Integer.toString(i));
        message.putUserProperty(NOTE, note(i));
        return message;
    }

    private byte[] body(int i) {
        byte[] body = new byte[bodyBytes[i]];
        SplittableRandom random = new SplittableRandom(seed * 1_000_003 + i);
        if (i % 2 == 0) {
            random.nextBytes(body);
        } else {
            for (int at = 0; at < body.length; at++) {
                body[at] = at % 8 == 0 ? (byte) ('a' + random.nextInt(26)) : body[at - 1];
            }
        }
        return body;
    }

    static String tag(int i) {
        return "tag-" + i % 5;
    }

    static String keys(int i) {
        return "key-" + i + " other-" + i % 7;
    }

    static String note(int i) {
        return "naïve: \"" + i + "\" 消息 \uD83D\uDE00";
    }

    static byte[] hash(byte[] body) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(body);
        } catch (java.security.NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The index in the keys, or -1 where they are not ours. */
    static int index(MessageExt message) {
        String keys = message.getKeys();
        if (keys == null || !keys.startsWith("key-")) {
            return -1;
        }
        int blank = keys.indexOf(' ');
        try {
            return Integer.parseInt(keys.substring(4, blank < 0 ? keys.length() : blank));
        } catch (NumberFormatException error) {
            return -1;
        }
    }

    static boolean hasItsProperties(MessageExt message, int i) {
        return keys(i).equals(message.getKeys()) && tag(i).equals(message.getTags())
            && Integer.toString(i).equals(message.getUserProperty(INDEX)) && note(i).equals(message.getUserProperty(NOTE));
    }

    static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
