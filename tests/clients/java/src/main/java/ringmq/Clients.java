package ringmq;
public final class Clients { public static void main(String[] a) {} }
