// Requests and responses over many connections at a time.
//
//   java RequestResponse server KIND PORT SIZE
//   java RequestResponse client KIND HOST PORT SIZE CONNECTIONS SECONDS [WARM-UP]
//
// KIND is threads (blocking sockets, a thread for each), selector (one thread with a Selector for
// all of them) or virtual (as threads, of JDK 21's kind). SIZE bytes go there and back, compared.
// The server prints "listening PORT" and serves until it is ended. The client prints one line of
// JSON when it has measured for SECONDS, after so many of WARM-UP (1): "requests", "seconds", and
// the times of round trips in nanoseconds, "p50", "p99" and "p999".

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ThreadFactory;

public final class RequestResponse {
    private static final int BACKLOG = 1024;

    /** Times, in steps of 1/32 of their size. */
    static final class Times {
        private static final int STEPS = 32;
        private final long[] counts = new long[64 * STEPS];
        private long total;

        void add(long ns) {
            int exponent = Math.max(63 - Long.numberOfLeadingZeros(Math.max(ns, 1)), 5);
            counts[exponent * STEPS + (int) (ns >> exponent - 5) % STEPS]++;
            total++;
        }

        void addAll(Times other) {
            for (int i = 0; i < counts.length; ++i) {
                counts[i] += other.counts[i];
            }
            total += other.total;
        }

        long quantile(double part) {
            long left = (long) (part * total);
            for (int i = 0; i < counts.length; ++i) {
                left -= counts[i];
                if (left < 0) {
                    int exponent = i / STEPS;
                    return (1L << exponent) + ((long) (i % STEPS) << exponent - 5);
                }
            }
            return 0;
        }
    }

    /** When to measure: set by the client when all of its connections have been made. */
    static final class Span {
        volatile long start = Long.MAX_VALUE;
        volatile long end = Long.MAX_VALUE;

        boolean holds(long now) {
            return now >= start && now < end;
        }
    }

    static byte[] request(int size, int number) {
        byte[] bytes = new byte[size];
        for (int i = 0; i < size; ++i) {
            bytes[i] = (byte) (number + 31 * i);
        }
        return bytes;
    }

    static void check(boolean same) throws IOException {
        if (!same) {
            throw new IOException("the response is another");
        }
    }

    // ---- a thread for each connection

    static ThreadFactory threads(String kind) throws ReflectiveOperationException {
        if (kind.equals("threads")) {
            return runnable -> {
                Thread thread = new Thread(runnable);
                thread.setDaemon(true);
                return thread;
            };
        }
        // This is compiled for JDK 17.
        Object builder = Thread.class.getMethod("ofVirtual").invoke(null);
        return (ThreadFactory) Class.forName("java.lang.Thread$Builder").getMethod("factory").invoke(builder);
    }

    static boolean receive(InputStream in, byte[] bytes) throws IOException {
        for (int got = 0; got < bytes.length;) {
            int n = in.read(bytes, got, bytes.length - got);
            if (n < 0) {
                if (got != 0) {
                    throw new EOFException("within a request");
                }
                return false;
            }
            got += n;
        }
        return true;
    }

    static void serve(ThreadFactory threads, ServerSocket listener, int size) throws IOException {
        System.out.println("listening " + listener.getLocalPort());
        for (;;) {
            Socket socket = listener.accept();
            threads.newThread(() -> {
                try (socket) {
                    socket.setTcpNoDelay(true);
                    byte[] bytes = new byte[size];
                    InputStream in = socket.getInputStream();
                    OutputStream out = socket.getOutputStream();
                    while (receive(in, bytes)) {
                        out.write(bytes);
                    }
                } catch (IOException e) {
                    System.err.println(e);
                }
            }).start();
        }
    }

    static void ask(Socket socket, byte[] request, Span span, Times times) {
        byte[] response = new byte[request.length];
        try {
            InputStream in = socket.getInputStream();
            OutputStream out = socket.getOutputStream();
            for (long start = System.nanoTime(); start < span.end;) {
                out.write(request);
                check(receive(in, response) && Arrays.equals(request, response));
                long now = System.nanoTime();
                if (span.holds(now)) {
                    times.add(now - start);
                }
                start = now;
            }
        } catch (IOException e) {
            System.err.println(e);
            System.exit(1);
        }
    }

    static Times askByThreads(ThreadFactory factory, InetSocketAddress server, int size, int connections,
                              Span span, Runnable connected) throws IOException, InterruptedException {
        List<Thread> threads = new ArrayList<>();
        List<Times> all = new ArrayList<>();
        for (int i = 0; i < connections; ++i) {
            Socket socket = new Socket(server.getAddress(), server.getPort());
            socket.setTcpNoDelay(true);
            Times times = new Times();
            byte[] request = request(size, i);
            all.add(times);
            threads.add(factory.newThread(() -> ask(socket, request, span, times)));
        }
        threads.forEach(Thread::start);
        connected.run();
        Times sum = new Times();
        for (int i = 0; i < connections; ++i) {
            threads.get(i).join();
            sum.addAll(all.get(i));
        }
        return sum;
    }

    // ---- one thread for all of them

    /** A connection of a selector, and what it sends or receives at the moment. */
    static final class Exchange {
        final SocketChannel channel;
        final ByteBuffer out;
        final ByteBuffer in;
        long start;        // of the request
        boolean answers;   // the response is on its way

        Exchange(SocketChannel channel, byte[] request) throws IOException {
            this.channel = channel;
            channel.configureBlocking(false);
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            out = ByteBuffer.allocateDirect(request.length).put(request);
            in = ByteBuffer.allocateDirect(request.length);
        }

        /** Whether all has been sent; else waits for room. */
        boolean send(SelectionKey key, ByteBuffer bytes) throws IOException {
            channel.write(bytes);
            key.interestOps(bytes.hasRemaining() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
            return !bytes.hasRemaining();
        }
    }

    static void serveBySelector(InetSocketAddress address, int size) throws IOException {
        ServerSocketChannel listener = ServerSocketChannel.open().bind(address, BACKLOG);
        listener.configureBlocking(false);
        Selector selector = Selector.open();
        listener.register(selector, SelectionKey.OP_ACCEPT);
        System.out.println("listening " + listener.socket().getLocalPort());
        for (;;) {
            selector.select(key -> {
                try {
                    if (key.isAcceptable()) {
                        SocketChannel channel = listener.accept();
                        Exchange exchange = new Exchange(channel, new byte[size]);
                        channel.register(selector, SelectionKey.OP_READ, exchange);
                        return;
                    }
                    Exchange exchange = (Exchange) key.attachment();
                    ByteBuffer bytes = exchange.in;
                    if (!exchange.answers) {
                        if (exchange.channel.read(bytes) < 0) {
                            exchange.channel.close();
                            return;
                        }
                        if (bytes.hasRemaining()) {
                            return;
                        }
                        bytes.flip();
                    }
                    exchange.answers = !exchange.send(key, bytes);
                    if (!exchange.answers) {
                        bytes.clear();
                    }
                } catch (IOException e) {
                    System.err.println(e);
                    key.cancel();
                }
            });
        }
    }

    static Times askBySelector(InetSocketAddress server, int size, int connections, Span span,
                               Runnable connected) throws IOException {
        Selector selector = Selector.open();
        Times times = new Times();
        for (int i = 0; i < connections; ++i) {
            Exchange exchange = new Exchange(SocketChannel.open(server), request(size, i));
            SelectionKey key = exchange.channel.register(selector, 0, exchange);
            exchange.out.flip();
            exchange.start = System.nanoTime();
            exchange.send(key, exchange.out);
        }
        connected.run();
        int[] open = {connections};
        while (open[0] > 0) {
            selector.select(key -> {
                Exchange exchange = (Exchange) key.attachment();
                try {
                    if (exchange.out.hasRemaining()) {
                        exchange.send(key, exchange.out);
                        return;
                    }
                    if (exchange.channel.read(exchange.in) < 0) {
                        throw new EOFException("within a response");
                    }
                    if (exchange.in.hasRemaining()) {
                        return;
                    }
                    check(exchange.in.flip().equals(exchange.out.rewind()));
                    exchange.in.clear();
                    long now = System.nanoTime();
                    if (span.holds(now)) {
                        times.add(now - exchange.start);
                    }
                    exchange.start = now;
                    if (now < span.end) {
                        exchange.send(key, exchange.out);
                    } else {
                        exchange.channel.close();
                        --open[0];
                    }
                } catch (IOException e) {
                    System.err.println(e);
                    System.exit(1);
                }
            });
        }
        return times;
    }

    public static void main(String[] args) throws Exception {
        String kind = args[1];
        if (args[0].equals("server")) {
            InetSocketAddress address =
                new InetSocketAddress(InetAddress.getLoopbackAddress(), Integer.parseInt(args[2]));
            int size = Integer.parseInt(args[3]);
            if (kind.equals("selector")) {
                serveBySelector(address, size);
            } else {
                ServerSocket listener = new ServerSocket();
                listener.bind(address, BACKLOG);
                serve(threads(kind), listener, size);
            }
            return;
        }
        InetSocketAddress server = new InetSocketAddress(args[2], Integer.parseInt(args[3]));
        int size = Integer.parseInt(args[4]);
        int connections = Integer.parseInt(args[5]);
        double seconds = Double.parseDouble(args[6]);
        double warmUp = args.length > 7 ? Double.parseDouble(args[7]) : 1;
        Span span = new Span();
        Runnable connected = () -> {
            long start = System.nanoTime() + (long) (warmUp * 1e9);
            span.start = start;
            span.end = start + (long) (seconds * 1e9);
        };
        Times times = kind.equals("selector")
            ? askBySelector(server, size, connections, span, connected)
            : askByThreads(threads(kind), server, size, connections, span, connected);
        System.out.printf(Locale.ROOT,
            "{\"requests\": %d, \"seconds\": %.3f, \"p50\": %d, \"p99\": %d, \"p999\": %d}%n",
            times.total, seconds, times.quantile(0.5), times.quantile(0.99), times.quantile(0.999));
    }
}
