// Round trips of small messages over one connection.
//
//   java PingPong server MODE PORT
//   java PingPong client MODE HOST PORT [SECONDS [SIZE]]
//
// MODE is blocking (java.net.Socket), channel (blocking SocketChannel) or selector (non-blocking
// channel and a Selector). The server prints "listening PORT", serves one connection and ends. The
// client warms up, measures for SECONDS and prints one line of round-trip times in nanoseconds.

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.Locale;

public final class PingPong {
    private static final int MAX_SAMPLES = 4_000_000;
    private static final int MIN_WARM_UP_ROUNDS = 2_000;
    private static final int MAX_SIZE = 1 << 16;

    /** One end: receives into and sends from its own buffer. */
    interface End {
        /** Receives size bytes; false at the end of the stream. */
        boolean receive(int size) throws IOException;

        void send(int size) throws IOException;
    }

    static final class SocketEnd implements End {
        private final byte[] buffer = new byte[MAX_SIZE];
        private final InputStream in;
        private final OutputStream out;

        SocketEnd(Socket socket) throws IOException {
            socket.setTcpNoDelay(true);
            in = socket.getInputStream();
            out = socket.getOutputStream();
        }

        @Override
        public boolean receive(int size) throws IOException {
            for (int got = 0; got < size;) {
                int n = in.read(buffer, got, size - got);
                if (n < 0) {
                    return false;
                }
                got += n;
            }
            return true;
        }

        @Override
        public void send(int size) throws IOException {
            out.write(buffer, 0, size);
        }
    }

    static final class ChannelEnd implements End {
        private final ByteBuffer buffer = ByteBuffer.allocateDirect(MAX_SIZE);
        private final SocketChannel channel;
        private final Selector selector;

        ChannelEnd(SocketChannel channel, boolean selected) throws IOException {
            this.channel = channel;
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            if (selected) {
                selector = Selector.open();
                channel.configureBlocking(false);
                channel.register(selector, SelectionKey.OP_READ);
            } else {
                selector = null;
            }
        }

        @Override
        public boolean receive(int size) throws IOException {
            buffer.clear().limit(size);
            while (buffer.hasRemaining()) {
                if (selector != null) {
                    selector.select();
                    selector.selectedKeys().clear();
                }
                if (channel.read(buffer) < 0) {
                    return false;
                }
            }
            return true;
        }

        @Override
        public void send(int size) throws IOException {
            buffer.clear().limit(size);
            while (buffer.hasRemaining()) {
                channel.write(buffer);
            }
        }
    }

    static int waitForSize(End end) throws IOException {
        if (!end.receive(Integer.BYTES)) {
            throw new EOFException("no size");
        }
        ByteBuffer view = end instanceof SocketEnd ? ByteBuffer.wrap(((SocketEnd) end).buffer)
                                                   : ((ChannelEnd) end).buffer;
        return view.getInt(0);
    }

    static void sendSize(End end, int size) throws IOException {
        ByteBuffer view = end instanceof SocketEnd ? ByteBuffer.wrap(((SocketEnd) end).buffer)
                                                   : ((ChannelEnd) end).buffer;
        view.clear().putInt(0, size);
        end.send(Integer.BYTES);
    }

    static void serve(String mode, int port) throws IOException {
        if (mode.equals("blocking")) {
            try (ServerSocket server = new ServerSocket(port)) {
                listening(server.getLocalPort());
                try (Socket socket = server.accept()) {
                    echo(new SocketEnd(socket));
                }
            }
        } else {
            try (ServerSocketChannel server = ServerSocketChannel.open()) {
                server.bind(new InetSocketAddress(port));
                listening(((InetSocketAddress) server.getLocalAddress()).getPort());
                try (SocketChannel channel = server.accept()) {
                    echo(new ChannelEnd(channel, mode.equals("selector")));
                }
            }
        }
    }

    static void listening(int port) {
        System.out.println("listening " + port);
        System.out.flush();
    }

    static void echo(End end) throws IOException {
        int size = waitForSize(end);
        while (end.receive(size)) {
            end.send(size);
        }
    }

    static void roundTrip(End end, int size) throws IOException {
        end.send(size);
        if (!end.receive(size)) {
            throw new EOFException("the server left");
        }
    }

    static void measure(String mode, End end, double seconds, int size) throws IOException {
        sendSize(end, size);
        long warm = System.nanoTime() + (long) (seconds * 1e9 / 3);
        for (int i = 0; i < MIN_WARM_UP_ROUNDS || System.nanoTime() < warm; i++) {
            roundTrip(end, size);
        }
        long[] samples = new long[MAX_SAMPLES];
        int n = 0;
        long before = System.nanoTime();
        long stop = before + (long) (seconds * 1e9);
        while (n < MAX_SAMPLES && before < stop) {
            roundTrip(end, size);
            long after = System.nanoTime();
            samples[n++] = after - before;
            before = after;
        }
        Arrays.sort(samples, 0, n);
        System.out.printf(Locale.ROOT, "pingpong %s size=%d rounds=%d median_ns=%d p99_ns=%d%n",
                mode, size, n, samples[n / 2], samples[(int) (n * 0.99)]);
    }

    public static void main(String[] args) throws IOException {
        boolean server = args.length == 3 && args[0].equals("server");
        boolean client = args.length >= 4 && args[0].equals("client");
        if (!server && !client
                || !args[1].matches("blocking|channel|selector")) {
            System.err.println("usage: java PingPong server MODE PORT\n"
                    + "       java PingPong client MODE HOST PORT [SECONDS [SIZE]]\n"
                    + "MODE: blocking, channel or selector");
            System.exit(2);
        }
        String mode = args[1];
        if (server) {
            serve(mode, Integer.parseInt(args[2]));
            return;
        }
        InetSocketAddress address = new InetSocketAddress(args[2], Integer.parseInt(args[3]));
        double seconds = args.length > 4 ? Double.parseDouble(args[4]) : 3;
        int size = args.length > 5 ? Integer.parseInt(args[5]) : 64;
        if (mode.equals("blocking")) {
            try (Socket socket = new Socket()) {
                socket.connect(address);
                measure(mode, new SocketEnd(socket), seconds, size);
            }
        } else {
            try (SocketChannel channel = SocketChannel.open(address)) {
                measure(mode, new ChannelEnd(channel, mode.equals("selector")), seconds, size);
            }
        }
    }
}
