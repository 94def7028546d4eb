// How calls on sockets end that don't end well: closed, interrupted, timed out, refused, reset, half closed.
//
//   java Endings server      prints "listening PORT", and "unreachable PORT" of a port that never accepts
//   java Endings client PORT SUBJECT PORT_THAT_NEVER_ACCEPTS
//
// The client prints a line for each case of its subject, one of those in subject().

import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.AsynchronousSocketChannel;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

final class Endings {
    static final int WAIT = 150;  // ms; until a thread is in its call
    static final int LIMIT = 10;  // s; for the end of a call
    static final int INDIFFERENT = 2 * LIMIT * 1000;  // ms; the peer notices nothing for so long
    static int port;
    static int silentPort;

    static Socket socket() throws Exception {
        Socket socket = new Socket(InetAddress.getLoopbackAddress(), port);
        Noise.use(socket.getInputStream(), socket.getOutputStream());
        return socket;
    }

    static SocketChannel channel() throws Exception {
        SocketChannel channel = SocketChannel.open(
                new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        Noise.use(channel);
        return channel;
    }

    /** A call in a thread of its own, and how it ended. */
    static final class Call {
        final CompletableFuture<String> outcome = new CompletableFuture<>();
        final Thread thread;

        Call(Noise.Work<?> work) throws InterruptedException {
            thread = new Thread(() -> outcome.complete(
                    Noise.outcome(work) + (Thread.interrupted() ? " interrupted" : "")));
            thread.setDaemon(true);
            thread.start();
            Thread.sleep(WAIT);
        }

        String end() throws Exception {
            try {
                return outcome.get(LIMIT, TimeUnit.SECONDS);
            } catch (TimeoutException error) {
                return "HANGS";
            }
        }
    }

    static int fillUp(SocketChannel channel) throws IOException {
        ByteBuffer junk = ByteBuffer.allocateDirect(1 << 16);
        while (true) {
            channel.write(junk.clear());
        }
    }

    static int fillUp(Socket socket) throws IOException {
        byte[] junk = new byte[1 << 16];
        while (true) {
            socket.getOutputStream().write(junk);
        }
    }

    interface Disturbance {
        void to(Call call, AutoCloseable what) throws Exception;
    }

    /** Each blocking call, when the other thread closes its object or interrupts it. */
    static void disturbedSockets(String how, Disturbance disturbance) throws Exception {
        Socket reading = socket();
        Noise.tell(reading, 'w', INDIFFERENT);
        Call call = new Call(() -> reading.getInputStream().read());
        disturbance.to(call, reading);
        Noise.say(how, "Socket.read:", call.end(), reading.isClosed());

        Socket timed = socket();
        Noise.tell(timed, 'w', INDIFFERENT);
        timed.setSoTimeout(60_000);
        call = new Call(() -> timed.getInputStream().read());
        disturbance.to(call, timed);
        Noise.say(how, "Socket.read with a timeout:", call.end());

        Socket writing = socket();
        Noise.tell(writing, 'w', INDIFFERENT);
        call = new Call(() -> fillUp(writing));
        disturbance.to(call, writing);
        Noise.say(how, "Socket.write:", call.end());

        ServerSocket server = new ServerSocket(0);
        call = new Call(server::accept);
        disturbance.to(call, server);
        Noise.say(how, "ServerSocket.accept:", call.end());

        Socket connecting = new Socket();
        call = new Call(() -> {
            connecting.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), silentPort));
            return "connected";
        });
        disturbance.to(call, connecting);
        Noise.say(how, "Socket.connect:", call.end());
    }

    static void disturbedChannels(String how, Disturbance disturbance) throws Exception {
        SocketChannel reading = channel();
        Noise.tell(reading, 'w', INDIFFERENT);
        Call call = new Call(() -> reading.read(ByteBuffer.allocate(100)));
        disturbance.to(call, reading);
        Noise.say(how, "SocketChannel.read:", call.end(), reading.isOpen());

        SocketChannel scattering = channel();
        Noise.tell(scattering, 'w', INDIFFERENT);
        call = new Call(() -> scattering.read(
                new ByteBuffer[] {ByteBuffer.allocate(10), ByteBuffer.allocateDirect(10)}));
        disturbance.to(call, scattering);
        Noise.say(how, "SocketChannel.read of two buffers:", call.end());

        SocketChannel writing = channel();
        Noise.tell(writing, 'w', INDIFFERENT);
        call = new Call(() -> fillUp(writing));
        disturbance.to(call, writing);
        Noise.say(how, "SocketChannel.write:", call.end());

        ServerSocketChannel server = ServerSocketChannel.open().bind(null);
        call = new Call(server::accept);
        disturbance.to(call, server);
        Noise.say(how, "ServerSocketChannel.accept:", call.end());

        SocketChannel connecting = SocketChannel.open();
        call = new Call(() -> connecting.connect(
                new InetSocketAddress(InetAddress.getLoopbackAddress(), silentPort)));
        disturbance.to(call, connecting);
        Noise.say(how, "SocketChannel.connect:", call.end());

        SocketChannel adapted = channel();
        Noise.tell(adapted, 'w', INDIFFERENT);
        adapted.socket().setSoTimeout(60_000);
        call = new Call(() -> adapted.socket().getInputStream().read());
        disturbance.to(call, adapted);
        Noise.say(how, "read of a SocketChannel's socket with a timeout:", call.end());
    }

    static void asynchronousChannels() throws Exception {
        AsynchronousSocketChannel channel = AsynchronousSocketChannel.open();
        channel.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port)).get();
        for (int i = 0; i < Noise.ROUNDS; i++) {
            channel.write(ByteBuffer.wrap(Noise.bytes(i, Noise.SIZE))).get();
            ByteBuffer in = ByteBuffer.allocate(Noise.SIZE);
            while (in.hasRemaining()) {
                channel.read(in).get();
            }
            Thread.sleep(2);
        }
        Call call = new Call(() -> channel.read(ByteBuffer.allocate(1)).get());
        channel.close();
        Noise.say("closed AsynchronousSocketChannel.read:", call.end());

        AsynchronousSocketChannel refused = AsynchronousSocketChannel.open();
        Noise.say("AsynchronousSocketChannel refused:", Noise.outcome(
                () -> refused.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), 1)).get()));
    }

    static void timeouts() throws Exception {
        Socket socket = socket();
        InputStream in = socket.getInputStream();
        socket.setSoTimeout(100);
        for (int i = 0; i < 3; i++) {
            Noise.say("timed out:", Noise.outcome(in::read));
        }
        Noise.tell(socket, 's', 1000);
        socket.setSoTimeout(30_000);
        Noise.say("after timeouts:", Noise.sum(in.readNBytes(1000)));
        socket.setSoTimeout(100);
        Noise.say("timed out again:", Noise.outcome(in::read));
        socket.setSoTimeout(0);
        Noise.tell(socket, 'w', WAIT);
        Noise.tell(socket, 's', 300_000);
        Noise.say("without a timeout:", Noise.sum(in.readNBytes(300_000)), in.available());
        socket.close();

        SocketChannel channel = channel();
        channel.socket().setSoTimeout(100);
        Noise.say("timed out channel:", Noise.outcome(() -> channel.socket().getInputStream().read()));
        Noise.tell(channel, 's', 500);
        channel.socket().setSoTimeout(30_000);
        Noise.say("after that:", Noise.sum(channel.socket().getInputStream().readNBytes(500)));
        channel.close();

        try (ServerSocket server = new ServerSocket(0)) {
            server.setSoTimeout(50);
            Noise.say("accept timed out:", Noise.outcome(server::accept));
        }
        InetSocketAddress silent = new InetSocketAddress(InetAddress.getLoopbackAddress(), silentPort);
        Noise.say("connect timed out:", Noise.outcome(() -> {
            try (Socket late = new Socket()) {
                late.connect(silent, 200);
                return "connected";
            }
        }));
        Noise.say("connect timed out, channel:", Noise.outcome(() -> {
            try (SocketChannel late = SocketChannel.open()) {
                late.socket().connect(silent, 200);
                return "connected";
            }
        }));
    }

    static void refusals() throws Exception {
        InetSocketAddress nobody = new InetSocketAddress(InetAddress.getLoopbackAddress(), 1);
        Noise.say("refused:", Noise.outcome(() -> new Socket(nobody.getAddress(), 1)));
        Noise.say("refused with a timeout:", Noise.outcome(() -> {
            new Socket().connect(nobody, 1000);
            return "connected";
        }));
        Noise.say("refused channel:", Noise.outcome(() -> SocketChannel.open(nobody)));
        SocketChannel channel = SocketChannel.open();
        channel.configureBlocking(false);
        Noise.say("refused channel that does not block:", Noise.outcome(() -> {
            try (Selector selector = Selector.open()) {
                if (!channel.connect(nobody)) {
                    channel.register(selector, SelectionKey.OP_CONNECT);
                    selector.select();
                }
                return channel.finishConnect();
            }
        }), channel.isOpen());
    }

    static void halfCloses() throws Exception {
        Socket socket = socket();
        DataInputStream in = new DataInputStream(socket.getInputStream());
        Noise.tell(socket, 'a', 0);
        socket.getOutputStream().write(Noise.bytes(1, 200_000));
        socket.shutdownOutput();
        Noise.say("shutdownOutput:", in.readUTF(), in.read(), socket.isOutputShutdown(),
                Noise.outcome(() -> fillUp(socket)));
        socket.close();

        Socket deaf = socket();
        Call call = new Call(() -> deaf.getInputStream().read());
        InputStream nothing = deaf.getInputStream();
        deaf.shutdownInput();
        Noise.say("shutdownInput:", call.end(), nothing.read(), nothing.available(), deaf.isInputShutdown(),
                Noise.outcome(deaf::getInputStream));
        deaf.close();

        Socket ended = socket();
        Noise.tell(ended, 's', 1000);
        Noise.tell(ended, 'h', 0);
        in = new DataInputStream(ended.getInputStream());
        Noise.say("the peer's half close:", Noise.sum(in.readNBytes(1000)), in.read(), in.read());
        Noise.tell(ended, 'g', 100_000);
        ended.getOutputStream().write(Noise.bytes(2, 100_000));
        ended.close();

        SocketChannel channel = channel();
        Noise.tell(channel, 'a', 0);
        channel.write(ByteBuffer.wrap(Noise.bytes(3, 50_000)));
        channel.shutdownOutput();
        Noise.say("SocketChannel.shutdownOutput:",
                new DataInputStream(channel.socket().getInputStream()).readUTF(),
                channel.read(ByteBuffer.allocate(1)),
                Noise.outcome(() -> channel.write(ByteBuffer.allocate(1))));
        channel.close();

        SocketChannel mute = channel();
        call = new Call(() -> mute.read(ByteBuffer.allocate(1)));
        mute.shutdownInput();
        Noise.say("SocketChannel.shutdownInput:", call.end(), mute.read(ByteBuffer.allocate(1)));
        mute.close();
    }

    static void peersThatLeave() throws Exception {
        Socket closed = socket();
        Noise.tell(closed, 's', 100);
        Noise.tell(closed, 'c', 0);
        InputStream in = closed.getInputStream();
        Noise.say("the peer closed:", Noise.sum(in.readAllBytes()), in.read(),
                Noise.outcome(() -> fillUp(closed)).replace(" (Write failed)", ""));
        closed.close();

        Socket reset = socket();
        Noise.tell(reset, 'w', WAIT);
        Noise.tell(reset, 'r', 0);
        Noise.say("the peer reset:", Noise.outcome(() -> reset.getInputStream().read()),
                Noise.outcome(() -> reset.getInputStream().read()));
        reset.close();

        SocketChannel channel = channel();
        Noise.tell(channel, 'w', WAIT);
        Noise.tell(channel, 'r', 0);
        Noise.say("the peer reset the channel:", Noise.outcome(() -> channel.read(ByteBuffer.allocate(1))),
                Noise.outcome(() -> channel.write(ByteBuffer.allocate(1))));
        channel.close();

        SocketChannel selected = channel();
        Noise.tell(selected, 'w', WAIT);
        Noise.tell(selected, 'r', 0);
        selected.configureBlocking(false);
        try (Selector selector = Selector.open()) {
            SelectionKey key = selected.register(selector, SelectionKey.OP_READ);
            Noise.say("the peer reset, selected:", selector.select(30_000), key.readyOps(),
                    Noise.outcome(() -> selected.read(ByteBuffer.allocate(1))));
        }
        selected.close();
    }

    static void selectors() throws Exception {
        Selector selector = Selector.open();
        SocketChannel channel = channel();
        channel.configureBlocking(false);
        SelectionKey key = channel.register(selector, SelectionKey.OP_READ);
        Call call = new Call(selector::select);
        selector.wakeup();
        Noise.say("wakeup:", call.end(), selector.selectNow(), selector.select(50));

        call = new Call(selector::select);
        call.thread.interrupt();
        Noise.say("interrupted select:", call.end(), selector.isOpen(), channel.isOpen());

        // A key that changes its interest, or is cancelled, while another thread waits.
        call = new Call(selector::select);
        key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
        selector.wakeup();
        call.end();
        Noise.say("writable:", selector.selectNow() >= 0, selector.selectedKeys().contains(key),
                key.isWritable(), key.isReadable());
        selector.selectedKeys().clear();
        key.interestOps(SelectionKey.OP_READ);
        call = new Call(selector::select);
        Noise.tell(channel, 's', 7);
        Noise.say("readable:", call.end(), key.isReadable());
        call = new Call(() -> {
            selector.selectedKeys().clear();
            key.cancel();
            return selector.selectNow();
        });
        Noise.say("cancelled:", call.end(), key.isValid(), selector.keys().size());
        channel.configureBlocking(true);
        ByteBuffer in = ByteBuffer.allocate(7);
        Noise.readFully(channel, in);
        Noise.say("blocking again:", Noise.sum(in.flip()));

        channel.configureBlocking(false);
        SelectionKey again = channel.register(selector, SelectionKey.OP_READ);
        call = new Call(selector::select);
        // close() shuts down writing before it cancels the key: were the peer's own end there in between, it
        // would be selected.
        Noise.tell(channel, 'w', 500);
        channel.close();
        Noise.say("closed a selected channel:", again.isValid(),
                Noise.outcome(selector::wakeup).startsWith("sun.nio.ch"), call.end());

        SocketChannel other = channel();
        other.configureBlocking(false);
        SelectionKey last = other.register(selector, SelectionKey.OP_READ);
        call = new Call(selector::select);
        selector.close();
        Noise.say("closed selector:", call.end(), last.isValid(), other.isOpen(),
                Noise.outcome(selector::selectNow));
        other.configureBlocking(true);
        Noise.tell(other, 's', 1000);
        in = ByteBuffer.allocate(1000);
        Noise.readFully(other, in);
        Noise.say("the channel lives on:", Noise.sum(in.flip()));
        other.close();
    }

    static void options() throws Exception {
        Socket socket = socket();
        socket.setSoLinger(true, 3);
        socket.setKeepAlive(true);
        socket.setTcpNoDelay(true);
        socket.setTrafficClass(8);
        Noise.say("options:", socket.getSoLinger(), socket.getKeepAlive(), socket.getTcpNoDelay(),
                socket.getTrafficClass(), socket.isConnected(), socket.isBound(),
                socket.getLocalAddress(), socket.getPort() == port);
        Noise.say("urgent data:", Noise.outcome(() -> {
            socket.sendUrgentData('!');
            Noise.tell(socket, 's', 100);
            return Noise.sum(socket.getInputStream().readNBytes(100));
        }));
        socket.close();
        Noise.say("closed:", Noise.outcome(socket::getInputStream), Noise.outcome(socket::getSoTimeout));
        SocketChannel channel = channel();
        channel.setOption(StandardSocketOptions.SO_LINGER, 2);
        Noise.say("channel's options:", channel.getOption(StandardSocketOptions.SO_LINGER),
                channel.supportedOptions().size());
        channel.close();
    }

    static void subject(String name) throws Exception {
        switch (name) {
            case "close-sockets":
                disturbedSockets("closed", (call, what) -> what.close());
                break;
            case "close-channels":
                disturbedChannels("closed", (call, what) -> what.close());
                asynchronousChannels();
                break;
            case "interrupt":
                disturbedChannels("interrupted", (call, what) -> call.thread.interrupt());
                break;
            case "timeouts":
                timeouts();
                refusals();
                break;
            case "half-close":
                halfCloses();
                break;
            case "peers-that-leave":
                peersThatLeave();
                break;
            case "selectors":
                selectors();
                break;
            case "options":
                options();
                break;
            default:
                throw new IllegalArgumentException(name);
        }
    }

    static void server() throws Exception {
        // Its queue is full, so whoever connects there waits.
        ServerSocket silent = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        for (int i = 0; i < 2; i++) {
            new Socket(InetAddress.getLoopbackAddress(), silent.getLocalPort());
        }
        System.out.println("unreachable " + silent.getLocalPort());
        try (ServerSocket server = new ServerSocket(0)) {
            Noise.listening(server.getLocalPort());
            while (true) {
                Socket socket = server.accept();
                Noise.spawn("peer", () -> {
                    try (socket) {
                        Noise.obey(socket);
                    } catch (IOException error) {
                        // The client's business is to end streams badly.
                    }
                    return null;
                });
            }
        }
    }

    public static void main(String[] args) throws Exception {
        Noise.watchdog(90);
        if (args[0].equals("server")) {
            server();
        } else {
            port = Integer.parseInt(args[1]);
            silentPort = Integer.parseInt(args[3]);
            subject(args[2]);
        }
    }
}
