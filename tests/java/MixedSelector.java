// One Selector with a listener, streams, datagrams and a pipe; files sent from and received into channels;
// gathering writes and scattering reads.
//
//   java MixedSelector server       prints "listening PORT"
//   java MixedSelector client PORT

import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.DatagramChannel;
import java.nio.channels.FileChannel;
import java.nio.channels.Pipe;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Iterator;

final class MixedSelector {
    static final int FILE_SIZE = 6_000_011;

    // ---- server: one thread echoes streams and datagrams, and tells of them through a pipe ----

    static final class Echo {
        final ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 16);
        boolean ended;
        long bytes;

        void step(SelectionKey key, Pipe.SinkChannel sink) throws IOException {
            SocketChannel channel = (SocketChannel) key.channel();
            int n = ended ? 0 : channel.read(buffer);
            ended |= n < 0;
            bytes += Math.max(0, n);
            buffer.flip();
            channel.write(buffer);
            buffer.compact();
            if (ended && buffer.position() == 0) {
                channel.close();
                sink.write(ByteBuffer.allocate(8).putLong(bytes).flip());
                return;
            }
            key.interestOps((buffer.position() > 0 ? SelectionKey.OP_WRITE : 0)
                    | (!ended && buffer.hasRemaining() ? SelectionKey.OP_READ : 0));
        }
    }

    static void server() throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 100);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        int port = ((InetSocketAddress) listener.getLocalAddress()).getPort();
        DatagramChannel datagrams = DatagramChannel.open();
        datagrams.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        datagrams.configureBlocking(false);
        datagrams.register(selector, SelectionKey.OP_READ);
        Pipe pipe = Pipe.open();
        pipe.source().configureBlocking(false);
        pipe.source().register(selector, SelectionKey.OP_READ);
        Noise.listening(port);
        long total = 0;
        int[] counts = new int[3];  // datagrams, streams begun, streams ended
        ByteBuffer scratch = ByteBuffer.allocate(2000);
        while (true) {
            selector.select();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext();) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.channel() == listener) {
                    SocketChannel channel = listener.accept();
                    channel.configureBlocking(false);
                    channel.register(selector, SelectionKey.OP_READ, new Echo());
                    counts[1]++;
                } else if (key.channel() == datagrams) {
                    InetSocketAddress from = (InetSocketAddress) datagrams.receive(scratch.clear());
                    counts[0]++;
                    String text = total + " bytes, " + counts[0] + " datagrams, " + counts[1] + " streams, "
                            + counts[2] + " ended";
                    datagrams.send(ByteBuffer.wrap(text.getBytes()), from);
                } else if (key.channel() == pipe.source()) {
                    ByteBuffer told = ByteBuffer.allocate(8);
                    while (told.hasRemaining()) {
                        pipe.source().read(told);
                    }
                    total += told.getLong(0);
                    counts[2]++;
                } else {
                    ((Echo) key.attachment()).step(key, pipe.sink());
                }
            }
        }
    }

    // ---- client ----

    static SocketChannel connect(int port) throws Exception {
        SocketChannel channel = SocketChannel.open(
                new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        Noise.use(channel);
        return channel;
    }

    static String ask(DatagramChannel datagrams) throws IOException {
        datagrams.write(ByteBuffer.allocate(1));
        ByteBuffer answer = ByteBuffer.allocate(2000);
        datagrams.read(answer);
        return new String(answer.array(), 0, answer.position());
    }

    /** Waits until the server knows of that many ended streams. */
    static String askUntilEnded(DatagramChannel datagrams, int streams) throws Exception {
        while (true) {
            String text = ask(datagrams);
            if (text.endsWith(" " + streams + " ended")) {
                return text.replaceAll("\\d+ datagrams", "datagrams");
            }
            Thread.sleep(10);
        }
    }

    static void files(int port, Path directory, boolean direct) throws Exception {
        Path from = Files.write(directory.resolve("from"), Noise.bytes(9, FILE_SIZE));
        Path to = directory.resolve("to");
        try (SocketChannel channel = connect(port); FileChannel source = FileChannel.open(from);
                FileChannel sink = FileChannel.open(to, StandardOpenOption.CREATE, StandardOpenOption.WRITE,
                        StandardOpenOption.READ, StandardOpenOption.TRUNCATE_EXISTING)) {
            Thread sender = Noise.spawn("sender", () -> {
                for (long at = 0; at < FILE_SIZE;) {
                    at += source.transferTo(at, Math.min(777_777, FILE_SIZE - at), channel);
                }
                channel.shutdownOutput();
                return null;
            });
            if (direct) {
                for (long at = 0; at < FILE_SIZE;) {
                    at += sink.transferFrom(channel, at, 500_000);
                }
            } else {
                Files.copy(Channels.newInputStream(channel), directory.resolve("copy"));
                sink.write(ByteBuffer.wrap(Files.readAllBytes(directory.resolve("copy"))));
            }
            sender.join();
            Noise.say("transferTo and back", direct, Noise.sum(Files.readAllBytes(to)), sink.size(),
                    channel.read(ByteBuffer.allocate(1)));
        }
    }

    static void vectors(int port) throws Exception {
        try (SocketChannel channel = connect(port)) {
            byte[] data = Noise.bytes(5, 3_000_000);
            Thread sender = Noise.spawn("sender", () -> {
                ByteBuffer[] parts = new ByteBuffer[200];
                for (int i = 0; i < parts.length; i++) {
                    ByteBuffer part = ByteBuffer.wrap(data, i * 15_000, 15_000);
                    parts[i] = i % 3 == 0 ? ByteBuffer.allocateDirect(15_000).put(part).flip() : part;
                }
                for (long left = data.length; left > 0;) {
                    left -= channel.write(parts);
                }
                return null;
            });
            byte[] got = new byte[data.length];
            for (int at = 0; at < got.length;) {
                ByteBuffer[] parts = new ByteBuffer[20];
                for (int i = 0; i < parts.length; i++) {
                    int start = Math.min(got.length, at + i * 1001);
                    parts[i] = ByteBuffer.wrap(got, start, Math.min(1001, got.length - start));
                }
                at += channel.read(parts);
            }
            sender.join();
            Noise.say("gathered and scattered", Noise.sum(got), Noise.sum(data));
        }
    }

    /** Many streams in one Selector with a pipe and datagrams: the client's own mixture. */
    static void mixture(int port) throws Exception {
        Selector selector = Selector.open();
        Pipe pipe = Pipe.open();
        pipe.source().configureBlocking(false);
        pipe.source().register(selector, SelectionKey.OP_READ);
        DatagramChannel datagrams = DatagramChannel.open();
        datagrams.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        datagrams.configureBlocking(false);
        datagrams.register(selector, SelectionKey.OP_READ);
        int streams = 20;
        int rounds = 300;
        for (int i = 0; i < streams; i++) {
            SocketChannel channel = SocketChannel.open();
            channel.configureBlocking(false);
            channel.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
            channel.register(selector, SelectionKey.OP_CONNECT, new int[2]);
        }
        Noise.spawn("ticks", () -> {
            for (int i = 0; i < 50; i++) {
                pipe.sink().write(ByteBuffer.allocate(1));
                Thread.sleep(3);
            }
            pipe.sink().close();
            return null;
        });
        int done = 0;
        int ticks = 0;
        int answers = 0;
        ByteBuffer buffer = ByteBuffer.allocateDirect(4096);
        while (done < streams || pipe.source().isOpen() || answers < 50) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.channel() == pipe.source()) {
                    int n = pipe.source().read(buffer.clear());
                    if (n < 0) {
                        pipe.source().close();
                    }
                    for (int i = 0; i < n; i++) {
                        ticks++;
                        datagrams.write(ByteBuffer.allocate(1));
                    }
                } else if (key.channel() == datagrams) {
                    datagrams.read(buffer.clear());
                    answers++;
                } else {
                    SocketChannel channel = (SocketChannel) key.channel();
                    int[] state = (int[]) key.attachment();
                    if (key.isConnectable()) {
                        channel.finishConnect();
                        key.interestOps(SelectionKey.OP_READ);
                        channel.write(ByteBuffer.allocate(100));
                    } else {
                        state[0] += channel.read(buffer.clear());
                        if (state[0] == 100) {
                            state[0] = 0;
                            if (++state[1] == rounds) {
                                channel.close();
                                done++;
                            } else {
                                channel.write(ByteBuffer.allocate(100));
                            }
                        }
                    }
                }
            }
            selector.selectedKeys().clear();
        }
        Noise.say("mixture", done, ticks, answers);
        selector.close();
        datagrams.close();
    }

    /** The adaptors: streams over channels, a channel's socket. */
    static void adaptors(int port) throws Exception {
        try (SocketChannel channel = connect(port)) {
            byte[] data = Noise.bytes(8, 400_000);
            Socket socket = channel.socket();
            byte[] got = new byte[data.length];
            // One after the other: a thread that reads like this holds a lock for which the other one, which
            // writes like this, would wait (blockingLock()).
            Channels.newOutputStream(channel).write(data, 0, 20_000);
            new DataInputStream(Channels.newInputStream(channel)).readFully(got, 0, 20_000);
            Thread sender = Noise.spawn("sender", () -> {
                socket.getOutputStream().write(data, 20_000, 380_000);
                return null;
            });
            new DataInputStream(socket.getInputStream()).readFully(got, 20_000, 380_000);
            sender.join();
            Noise.say("adaptors", Noise.sum(got).equals(Noise.sum(data)));
        }
    }

    static void client(int port, Path directory) throws Exception {
        files(port, directory, true);
        files(port, directory, false);
        vectors(port);
        adaptors(port);
        mixture(port);
        try (DatagramChannel datagrams = DatagramChannel.open()) {
            datagrams.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
            Noise.say(askUntilEnded(datagrams, 24));
        }
    }

    public static void main(String[] args) throws Exception {
        Noise.watchdog(110);
        if (args[0].equals("server")) {
            server();
        } else {
            Path directory = Files.createTempDirectory("mixed");
            try {
                client(Integer.parseInt(args[1]), directory);
            } finally {
                for (String name : new String[] {"from", "to", "copy"}) {
                    Files.deleteIfExists(directory.resolve(name));
                }
                Files.delete(directory);
            }
        }
    }
}
