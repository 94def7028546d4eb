// The checked transfer: many connections, random message sizes, data in both directions, every byte
// compared with what its place in the stream must hold, half close at the end.
//
//   java Check server MODE PORT CONNECTIONS
//   java Check client MODE HOST PORT CONNECTIONS TOTAL_BYTES SEED
//
// MODE is blocking, pool, channel, selector or aio; the two sides need not use the same one. PORT 0
// lets the system choose; the server prints "listening PORT" when it is ready. TOTAL_BYTES counts
// the payload of all connections in both directions.
//
// A connection on the wire: the client sends a header (magic, seed, connection number, payload
// bytes per direction) and then its payload; the server starts its own payload when it has read the
// header. A payload ends with its length and its CRC-32C, and then comes the end of the stream.
//
// Exit code: 0 every byte was right, 1 something was wrong, 2 usage, 3 the watchdog ended a hang.

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.AsynchronousServerSocketChannel;
import java.nio.channels.AsynchronousSocketChannel;
import java.nio.channels.CompletionHandler;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

public final class Check {
    private static final int MAX_MESSAGE = CheckedConnection.MAX_MESSAGE;
    private static final int BACKLOG = 1024;

    // --------------------------------------------------------------------------------------------
    // The run as a whole
    // --------------------------------------------------------------------------------------------

    static String role;
    static String mode;
    static String host;
    static int port;
    static int connections;
    static long bytesPerDirection;
    static long seed;
    static CountDownLatch left;
    static final AtomicLong verified = new AtomicLong();

    static void fail(Throwable error) {
        synchronized (Check.class) {
            System.err.println("check " + role + " " + mode + " FAILED: " + error);
            error.printStackTrace();
            System.err.flush();
            System.exit(1);
        }
    }

    static void finished(CheckedConnection connection) {
        verified.addAndGet(connection.payload);
        left.countDown();
    }

    static void listening(int port) {
        System.out.println("listening " + port);
        System.out.flush();
    }

    static CheckedConnection clientConnection(int number) {
        return new CheckedConnection(seed, number, bytesPerDirection);
    }

    interface Work {
        void run() throws Exception;
    }

    static Runnable guarded(Work work) {
        return () -> {
            try {
                work.run();
            } catch (Throwable error) {
                fail(error);
            }
        };
    }

    static void spawn(String name, Work work) {
        Thread thread = new Thread(guarded(work), name);
        thread.setDaemon(true);
        thread.start();
    }

    static void startWatchdog(long seconds) {
        Thread watchdog = new Thread(() -> {
            try {
                TimeUnit.SECONDS.sleep(seconds);
            } catch (InterruptedException e) {
                return;
            }
            System.err.println("check " + role + " " + mode + " HANGS: " + left.getCount() + " of "
                    + connections + " connections left after " + seconds + " s");
            for (Map.Entry<Thread, StackTraceElement[]> e : Thread.getAllStackTraces().entrySet()) {
                System.err.println("\"" + e.getKey().getName() + "\" " + e.getKey().getState());
                for (StackTraceElement frame : e.getValue()) {
                    System.err.println("    " + frame);
                }
            }
            System.err.flush();
            Runtime.getRuntime().halt(3);
        }, "watchdog");
        watchdog.setDaemon(true);
        watchdog.start();
    }

    // --------------------------------------------------------------------------------------------
    // blocking and pool: java.net.Socket
    // --------------------------------------------------------------------------------------------

    interface SocketUser {
        void use(Socket socket, CheckedConnection connection) throws Exception;
    }

    static void runSockets(SocketUser user) throws Exception {
        if (role.equals("server")) {
            try (ServerSocket server = new ServerSocket(port, BACKLOG)) {
                listening(server.getLocalPort());
                for (int i = 0; i < connections; i++) {
                    user.use(server.accept(), new CheckedConnection());
                }
                left.await();
            }
        } else {
            for (int i = 0; i < connections; i++) {
                Socket socket = new Socket();
                if (i % 2 == 0) {
                    socket.connect(new InetSocketAddress(host, port));
                } else {
                    socket.connect(new InetSocketAddress(host, port), 30_000);
                }
                user.use(socket, clientConnection(i));
            }
            left.await();
        }
    }

    static void prepare(Socket socket, CheckedConnection connection) throws IOException {
        switch (connection.variant(3)) {
            case 1:
                socket.setSoTimeout(600_000);
                break;
            case 2:
                socket.setTcpNoDelay(true);
                break;
            default:
                break;
        }
    }

    static void closeAfterBoth(Socket socket, CheckedConnection connection) throws IOException {
        if (connection.halfDone()) {
            socket.close();
            finished(connection);
        }
    }

    /** Returns false at the end of the stream. */
    static boolean readOnce(Socket socket, CheckedConnection connection, byte[] buffer)
            throws IOException {
        int n = socket.getInputStream().read(buffer, 0, connection.nextReadSize());
        if (n < 0) {
            connection.receivedEnd();
            return false;
        }
        connection.received(ByteBuffer.wrap(buffer, 0, n));
        return true;
    }

    /** Returns false when the stream has been sent and half closed. */
    static boolean writeOnce(Socket socket, CheckedConnection connection, ByteBuffer buffer)
            throws IOException {
        if (connection.source.done()) {
            socket.shutdownOutput();
            return false;
        }
        connection.source.nextMessage(buffer);
        socket.getOutputStream().write(buffer.array(), 0, buffer.limit());
        return true;
    }

    static void useBlocking(Socket socket, CheckedConnection connection) throws Exception {
        prepare(socket, connection);
        spawn("reader", () -> {
            byte[] buffer = new byte[MAX_MESSAGE];
            while (readOnce(socket, connection, buffer)) {
            }
            closeAfterBoth(socket, connection);
        });
        spawn("writer", () -> {
            connection.awaitReady();
            ByteBuffer buffer = ByteBuffer.allocate(MAX_MESSAGE);
            while (writeOnce(socket, connection, buffer)) {
            }
            closeAfterBoth(socket, connection);
        });
    }

    static ExecutorService pool;

    /** One task is one read or one write: a connection wanders through the threads of the pool. */
    static void usePool(Socket socket, CheckedConnection connection) throws Exception {
        prepare(socket, connection);
        byte[] in = new byte[MAX_MESSAGE];
        ByteBuffer out = ByteBuffer.allocate(MAX_MESSAGE);
        pool.execute(new Runnable() {
            private final Runnable step = guarded(() -> {
                if (readOnce(socket, connection, in)) {
                    pool.execute(this);
                } else {
                    closeAfterBoth(socket, connection);
                }
            });

            @Override
            public void run() {
                step.run();
            }
        });
        pool.execute(new Runnable() {
            private final Runnable step = guarded(() -> {
                connection.awaitReady();
                if (writeOnce(socket, connection, out)) {
                    pool.execute(this);
                } else {
                    closeAfterBoth(socket, connection);
                }
            });

            @Override
            public void run() {
                step.run();
            }
        });
    }

    // --------------------------------------------------------------------------------------------
    // channel: blocking SocketChannels; heap and direct buffers, and gather and scatter calls
    // --------------------------------------------------------------------------------------------

    static void runChannels() throws Exception {
        if (role.equals("server")) {
            try (ServerSocketChannel server = ServerSocketChannel.open()) {
                server.bind(new InetSocketAddress(port), BACKLOG);
                listening(((InetSocketAddress) server.getLocalAddress()).getPort());
                for (int i = 0; i < connections; i++) {
                    useChannel(server.accept(), new CheckedConnection());
                }
                left.await();
            }
        } else {
            for (int i = 0; i < connections; i++) {
                useChannel(SocketChannel.open(new InetSocketAddress(host, port)),
                        clientConnection(i));
            }
            left.await();
        }
    }

    static ByteBuffer allocate(CheckedConnection connection) {
        return connection.variant(2) == 0 ? ByteBuffer.allocateDirect(MAX_MESSAGE)
                                          : ByteBuffer.allocate(MAX_MESSAGE);
    }

    /** The buffer cut into up to five pieces of unequal length. */
    static ByteBuffer[] pieces(ByteBuffer buffer) {
        List<ByteBuffer> parts = new ArrayList<>();
        int at = buffer.position();
        for (int i = 0; i < 4 && buffer.limit() - at > 1; i++) {
            int n = Math.max(1, (buffer.limit() - at) / (2 + i));
            parts.add(buffer.slice(at, n));
            at += n;
        }
        parts.add(buffer.slice(at, buffer.limit() - at));
        return parts.toArray(new ByteBuffer[0]);
    }

    static void useChannel(SocketChannel channel, CheckedConnection connection) throws Exception {
        if (connection.variant(3) == 1) {
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        }
        boolean vectors = connection.variant(4) >= 2;
        spawn("reader", () -> {
            ByteBuffer in = allocate(connection);
            while (true) {
                in.clear().limit(connection.nextReadSize());
                long n;
                if (vectors && connection.ready()) {
                    n = channel.read(pieces(in));
                    in.position((int) Math.max(0, n));
                } else {
                    n = channel.read(in);
                }
                if (n < 0) {
                    break;
                }
                connection.received(in.flip());
            }
            connection.receivedEnd();
            closeAfterBoth(channel, connection);
        });
        spawn("writer", () -> {
            connection.awaitReady();
            ByteBuffer out = allocate(connection);
            while (!connection.source.done()) {
                connection.source.nextMessage(out);
                while (out.hasRemaining()) {
                    if (vectors) {
                        long n = channel.write(pieces(out));
                        out.position(out.position() + (int) n);
                    } else {
                        channel.write(out);
                    }
                }
            }
            channel.shutdownOutput();
            closeAfterBoth(channel, connection);
        });
    }

    static void closeAfterBoth(SocketChannel channel, CheckedConnection connection)
            throws IOException {
        if (connection.halfDone()) {
            channel.close();
            finished(connection);
        }
    }

    // --------------------------------------------------------------------------------------------
    // selector: one thread, non-blocking channels
    // --------------------------------------------------------------------------------------------

    static final class Selected {
        final CheckedConnection connection;
        final ByteBuffer in = ByteBuffer.allocateDirect(MAX_MESSAGE);
        final ByteBuffer out = ByteBuffer.allocateDirect(MAX_MESSAGE).limit(0);

        Selected(CheckedConnection connection) {
            this.connection = connection;
        }

        void read(SelectionKey key) throws IOException {
            SocketChannel channel = (SocketChannel) key.channel();
            boolean wasReady = connection.ready();
            in.clear().limit(connection.nextReadSize());
            int n = channel.read(in);
            if (n < 0) {
                connection.receivedEnd();
                key.interestOpsAnd(~SelectionKey.OP_READ);
                closeAfterBoth(channel, connection);
                return;
            }
            connection.received(in.flip());
            if (!wasReady && connection.ready()) {
                key.interestOpsOr(SelectionKey.OP_WRITE);
            }
        }

        void write(SelectionKey key) throws IOException {
            SocketChannel channel = (SocketChannel) key.channel();
            while (true) {
                if (!out.hasRemaining()) {
                    if (connection.source.done()) {
                        channel.shutdownOutput();
                        key.interestOpsAnd(~SelectionKey.OP_WRITE);
                        closeAfterBoth(channel, connection);
                        return;
                    }
                    connection.source.nextMessage(out);
                }
                channel.write(out);
                if (out.hasRemaining() || out.limit() > 4096) {
                    return;  // full, or enough for one turn
                }
            }
        }
    }

    static void runSelector() throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel server = null;
        if (role.equals("server")) {
            server = ServerSocketChannel.open();
            server.bind(new InetSocketAddress(port), BACKLOG);
            server.configureBlocking(false);
            server.register(selector, SelectionKey.OP_ACCEPT);
            listening(((InetSocketAddress) server.getLocalAddress()).getPort());
        } else {
            for (int i = 0; i < connections; i++) {
                SocketChannel channel = SocketChannel.open();
                channel.configureBlocking(false);
                Selected selected = new Selected(clientConnection(i));
                if (channel.connect(new InetSocketAddress(host, port))) {
                    channel.register(selector, SelectionKey.OP_READ | SelectionKey.OP_WRITE,
                            selected);
                } else {
                    channel.register(selector, SelectionKey.OP_CONNECT, selected);
                }
            }
        }
        while (left.getCount() > 0) {
            selector.select();
            var keys = selector.selectedKeys().iterator();
            while (keys.hasNext()) {
                SelectionKey key = keys.next();
                keys.remove();
                if (!key.isValid()) {
                    continue;
                }
                if (key.isAcceptable()) {
                    SocketChannel channel = ((ServerSocketChannel) key.channel()).accept();
                    if (channel != null) {
                        channel.configureBlocking(false);
                        channel.register(selector, SelectionKey.OP_READ,
                                new Selected(new CheckedConnection()));
                    }
                    continue;
                }
                if (key.isConnectable()) {
                    ((SocketChannel) key.channel()).finishConnect();
                    key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                    continue;
                }
                Selected selected = (Selected) key.attachment();
                if (key.isReadable()) {
                    selected.read(key);
                }
                if (key.isValid() && key.isWritable()) {
                    selected.write(key);
                }
            }
        }
        if (server != null) {
            server.close();
        }
        selector.close();
    }

    // --------------------------------------------------------------------------------------------
    // aio: AsynchronousSocketChannels
    // --------------------------------------------------------------------------------------------

    static <V> CompletionHandler<V, Void> handler(Completion<V> completion) {
        return new CompletionHandler<>() {
            @Override
            public void completed(V value, Void unused) {
                try {
                    completion.run(value);
                } catch (Throwable error) {
                    fail(error);
                }
            }

            @Override
            public void failed(Throwable error, Void unused) {
                fail(error);
            }
        };
    }

    interface Completion<V> {
        void run(V value) throws Exception;
    }

    static final class Async {
        final AsynchronousSocketChannel channel;
        final CheckedConnection connection;
        final ByteBuffer in;
        final ByteBuffer out;
        final CompletionHandler<Integer, Void> onRead = handler(this::onRead);
        final CompletionHandler<Integer, Void> onWrite = handler(n -> write());

        Async(AsynchronousSocketChannel channel, CheckedConnection connection) {
            this.channel = channel;
            this.connection = connection;
            in = allocate(connection);
            out = allocate(connection).limit(0);
        }

        void start() throws IOException {
            boolean ready = connection.ready();
            read();
            if (ready) {
                write();
            }
        }

        void read() {
            in.clear().limit(connection.nextReadSize());
            channel.read(in, null, onRead);
        }

        void onRead(int n) throws IOException {
            boolean wasReady = connection.ready();
            if (n < 0) {
                connection.receivedEnd();
                closeAfterBoth();
                return;
            }
            connection.received(in.flip());
            if (!wasReady && connection.ready()) {
                write();
            }
            read();
        }

        void write() throws IOException {
            if (!out.hasRemaining()) {
                if (connection.source.done()) {
                    channel.shutdownOutput();
                    closeAfterBoth();
                    return;
                }
                connection.source.nextMessage(out);
            }
            channel.write(out, null, onWrite);
        }

        void closeAfterBoth() throws IOException {
            if (connection.halfDone()) {
                channel.close();
                finished(connection);
            }
        }
    }

    static void runAio() throws Exception {
        if (role.equals("server")) {
            AsynchronousServerSocketChannel server = AsynchronousServerSocketChannel.open();
            server.bind(new InetSocketAddress(port), BACKLOG);
            listening(((InetSocketAddress) server.getLocalAddress()).getPort());
            AtomicInteger toAccept = new AtomicInteger(connections);
            server.accept(null, new CompletionHandler<AsynchronousSocketChannel, Void>() {
                @Override
                public void completed(AsynchronousSocketChannel channel, Void unused) {
                    if (toAccept.decrementAndGet() > 0) {
                        server.accept(null, this);
                    }
                    guarded(() -> new Async(channel, new CheckedConnection()).start()).run();
                }

                @Override
                public void failed(Throwable error, Void unused) {
                    fail(error);
                }
            });
            left.await();
            server.close();
        } else {
            for (int i = 0; i < connections; i++) {
                AsynchronousSocketChannel channel = AsynchronousSocketChannel.open();
                Async async = new Async(channel, clientConnection(i));
                channel.connect(new InetSocketAddress(InetAddress.getByName(host), port), null,
                        handler((Void unused) -> async.start()));
            }
            left.await();
        }
    }

    // --------------------------------------------------------------------------------------------

    static void usage() {
        System.err.println("usage: java Check server MODE PORT CONNECTIONS\n"
                + "       java Check client MODE HOST PORT CONNECTIONS TOTAL_BYTES SEED\n"
                + "MODE: blocking, pool, channel, selector or aio\n"
                + "-Dcheck.timeout=SECONDS bounds the run (default 300)");
        System.exit(2);
    }

    public static void main(String[] args) throws Exception {
        boolean server = args.length == 4 && args[0].equals("server");
        boolean client = args.length == 7 && args[0].equals("client");
        if (!server && !client) {
            usage();
        }
        role = args[0];
        mode = args[1];
        if (server) {
            port = Integer.parseInt(args[2]);
            connections = Integer.parseInt(args[3]);
        } else {
            host = args[2];
            port = Integer.parseInt(args[3]);
            connections = Integer.parseInt(args[4]);
            bytesPerDirection = Long.parseLong(args[5]) / (2L * connections);
            seed = Long.parseLong(args[6]);
        }
        left = new CountDownLatch(connections);
        startWatchdog(Long.getLong("check.timeout", 300));
        long start = System.nanoTime();
        try {
            switch (mode) {
                case "blocking":
                    runSockets(Check::useBlocking);
                    break;
                case "pool":
                    pool = Executors.newFixedThreadPool(2 * connections, task -> {
                        Thread thread = new Thread(task, "pool");
                        thread.setDaemon(true);
                        return thread;
                    });
                    runSockets(Check::usePool);
                    break;
                case "channel":
                    runChannels();
                    break;
                case "selector":
                    runSelector();
                    break;
                case "aio":
                    runAio();
                    break;
                default:
                    usage();
            }
        } catch (Throwable error) {
            fail(error);
        }
        double seconds = (System.nanoTime() - start) * 1e-9;
        System.out.printf(java.util.Locale.ROOT,
                "check %s %s: ok, %d connections, %d bytes each way, %.2f s%n", role, mode,
                connections, verified.get(), seconds);
    }
}
