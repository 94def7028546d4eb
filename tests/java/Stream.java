// Bulk throughput in one direction over one connection.
//
//   java Stream server MODE PORT
//   java Stream client MODE HOST PORT [SECONDS [WRITE_SIZE]]
//
// MODE is blocking (java.net.Socket) or channel (blocking SocketChannel, direct buffers). The
// client sends for SECONDS and half closes; the server answers with the number of bytes that it has
// read. The rate counts from the first byte sent to that answer.

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Locale;

public final class Stream {
    private static final int READ_SIZE = 1 << 17;

    static void serve(String mode, int port) throws IOException {
        if (mode.equals("blocking")) {
            try (ServerSocket server = new ServerSocket(port)) {
                listening(server.getLocalPort());
                try (Socket socket = server.accept()) {
                    InputStream in = socket.getInputStream();
                    byte[] buffer = new byte[READ_SIZE];
                    long total = 0;
                    for (int n; (n = in.read(buffer)) >= 0;) {
                        total += n;
                    }
                    new DataOutputStream(socket.getOutputStream()).writeLong(total);
                    print("server", mode, total, 0);
                }
            }
        } else {
            try (ServerSocketChannel server = ServerSocketChannel.open()) {
                server.bind(new InetSocketAddress(port));
                listening(((InetSocketAddress) server.getLocalAddress()).getPort());
                try (SocketChannel channel = server.accept()) {
                    ByteBuffer buffer = ByteBuffer.allocateDirect(READ_SIZE);
                    long total = 0;
                    for (int n; (n = channel.read(buffer.clear())) >= 0;) {
                        total += n;
                    }
                    channel.write(buffer.clear().putLong(total).flip());
                    print("server", mode, total, 0);
                }
            }
        }
    }

    static void listening(int port) {
        System.out.println("listening " + port);
        System.out.flush();
    }

    static void print(String role, String mode, long bytes, long nanos) {
        String rate = nanos == 0 ? ""
                                 : String.format(Locale.ROOT, " gbit_s=%.3f", bytes * 8.0 / nanos);
        System.out.printf(Locale.ROOT, "stream %s %s bytes=%d%s%n", role, mode, bytes, rate);
    }

    static void send(String mode, InetSocketAddress address, double seconds, int size)
            throws IOException {
        long sent = 0;
        long start;
        long confirmed;
        long end;
        if (mode.equals("blocking")) {
            try (Socket socket = new Socket()) {
                socket.connect(address);
                OutputStream out = socket.getOutputStream();
                byte[] buffer = new byte[size];
                start = System.nanoTime();
                long stop = start + (long) (seconds * 1e9);
                while (System.nanoTime() < stop) {
                    out.write(buffer);
                    sent += size;
                }
                socket.shutdownOutput();
                confirmed = new DataInputStream(socket.getInputStream()).readLong();
                end = System.nanoTime();
            }
        } else {
            try (SocketChannel channel = SocketChannel.open(address)) {
                ByteBuffer buffer = ByteBuffer.allocateDirect(size);
                start = System.nanoTime();
                long stop = start + (long) (seconds * 1e9);
                while (System.nanoTime() < stop) {
                    sent += channel.write(buffer.clear());
                }
                channel.shutdownOutput();
                ByteBuffer answer = ByteBuffer.allocate(Long.BYTES);
                while (answer.hasRemaining() && channel.read(answer) >= 0) {
                }
                confirmed = answer.getLong(0);
                end = System.nanoTime();
            }
        }
        if (confirmed != sent) {
            throw new IOException("sent " + sent + " bytes, the server read " + confirmed);
        }
        print("client", mode, sent, end - start);
    }

    public static void main(String[] args) throws IOException {
        boolean server = args.length == 3 && args[0].equals("server");
        boolean client = args.length >= 4 && args[0].equals("client");
        if (!server && !client || !args[1].matches("blocking|channel")) {
            System.err.println("usage: java Stream server MODE PORT\n"
                    + "       java Stream client MODE HOST PORT [SECONDS [WRITE_SIZE]]\n"
                    + "MODE: blocking or channel");
            System.exit(2);
        }
        if (server) {
            serve(args[1], Integer.parseInt(args[2]));
        } else {
            send(args[1], new InetSocketAddress(args[2], Integer.parseInt(args[3])),
                    args.length > 4 ? Double.parseDouble(args[4]) : 3,
                    args.length > 5 ? Integer.parseInt(args[5]) : 1 << 17);
        }
    }
}
