// A JVM that handles its own faults as before (null checks, stacks at their end). It also writes from
// a mapped file that was cut short meanwhile, and reads into one: that must throw an IOException, and
// must not end the JVM.
//
//   java CutFile server        prints "listening PORT", and echoes for ever
//   java CutFile client PORT

import java.io.IOException;
import java.io.RandomAccessFile;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;

final class CutFile {
    static final int SIZE = 1 << 20;
    static int depth;

    static void echo(SocketChannel channel) throws IOException {
        ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 16);
        while (channel.read(buffer) >= 0) {
            buffer.flip();
            while (buffer.hasRemaining()) channel.write(buffer);
            buffer.clear();
        }
    }

    static void exchange(SocketChannel channel, int rounds) throws IOException {
        ByteBuffer buffer = ByteBuffer.allocateDirect(100);
        for (int i = 0; i < rounds; ++i) {
            buffer.clear();
            while (buffer.hasRemaining()) channel.write(buffer);
            buffer.clear();
            while (buffer.hasRemaining())
                if (channel.read(buffer) < 0) throw new IOException("an end");
        }
    }

    static MappedByteBuffer cut(Path path) throws IOException {
        try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "rw")) {
            file.setLength(SIZE);
            MappedByteBuffer memory = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, SIZE);
            file.setLength(0);
            return memory;
        }
    }

    static int sink(int n) {
        depth = n;
        return sink(n + 1) + 1;
    }

    /// Faults that the JVM answers by itself.
    static int ownFaults(int rounds) {
        int seen = 0;
        for (int i = 0; i < rounds; ++i) {
            String text = i % 2 == 0 ? null : "text";
            try {
                seen += text.length() == 4 ? 0 : 1;
            } catch (NullPointerException expected) {
                ++seen;
            }
        }
        try {
            sink(0);
        } catch (StackOverflowError expected) {
            seen += depth > 100 ? 1 : 0;
        }
        return seen;
    }

    static void client(int port) throws IOException {
        Path path = Files.createTempFile("cut", null);
        InetSocketAddress server = new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
        try (SocketChannel channel = SocketChannel.open(server)) {
            for (int round = 0; round < 5; ++round) {
                exchange(channel, 2000);
                System.out.println("saw own faults " + ownFaults(20_000));
                MappedByteBuffer memory = cut(path);
                try {
                    System.out.println("saw wrote " + channel.write(memory));
                } catch (IOException expected) {
                    System.out.println("saw not written: " + expected.getMessage());
                }
                channel.write(ByteBuffer.allocateDirect(100));
                try {
                    System.out.println("saw read " + channel.read(memory));
                } catch (IOException expected) {
                    System.out.println("saw not read: " + expected.getMessage());
                }
                ByteBuffer rest = ByteBuffer.allocateDirect(100);
                while (rest.hasRemaining()) channel.read(rest);
            }
            exchange(channel, 100);
        } finally {
            Files.delete(path);
        }
        System.out.println("saw still alive");
    }

    public static void main(String[] arguments) throws IOException {
        if (arguments[0].equals("client")) {
            client(Integer.parseInt(arguments[1]));
            return;
        }
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        System.out.println("listening " + ((InetSocketAddress) listener.getLocalAddress()).getPort());
        System.out.flush();
        while (true) {
            try (SocketChannel channel = listener.accept()) {
                echo(channel);
            }
        }
    }
}
