package ringmq;

import java.util.LinkedHashMap;
import java.util.Map;

/** What a command found, as one JSON object with an {@code ok}. */
final class Result {
    private final Map<String, Object> members = new LinkedHashMap<>();
    private boolean ok = true;

    Result put(String name, Object value) {
        members.put(name, value);
        return this;
    }

    /** A count that must be {@code want}; anything else makes the whole result wrong. */
    Result expect(String name, long value, long want) {
        members.put(name, value);
        if (value != want) {
            wrong(name + " is " + value + ", not " + want);
        }
        return this;
    }

    Result wrong(String why) {
        ok = false;
        members.merge("wrong", why, (a, b) -> a + "; " + b);
        return this;
    }

    boolean isOk() {
        return ok;
    }

    String json() {
        StringBuilder out = new StringBuilder("{\"ok\":").append(ok);
        members.forEach((name, value) -> {
            out.append(',').append(quote(name)).append(':');
            out.append(value instanceof Number || value instanceof Boolean ? value : quote(String.valueOf(value)));
        });
        return out.append('}').toString();
    }

    private static String quote(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < 0x20) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
