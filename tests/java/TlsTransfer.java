// A checked transfer over TLS, by SSLSocket and by SSLEngine over a SocketChannel with a Selector.
//
//   java -Djavax.net.ssl.keyStore=... TlsTransfer server WAY       prints "listening PORT"
//   java -Djavax.net.ssl.trustStore=... TlsTransfer client PORT WAY
//
// WAY is socket or engine. A connection: the client sends its number, 4 bytes, and a body; the server answers
// with as many bytes of its own and the checksum of what it has read.

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.List;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLEngineResult;
import javax.net.ssl.SSLEngineResult.HandshakeStatus;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.SSLServerSocketFactory;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.SSLSocketFactory;

final class TlsTransfer {
    static final int CONNECTIONS = 8;
    static final int[] SIZES = {0, 1, 1000, 16_384, 70_000, 1 << 20, 4 << 20, 8 << 20};

    static int size(int number) {
        return SIZES[number % SIZES.length];
    }

    interface Stream {
        void write(byte[] data) throws Exception;

        byte[] read(int n) throws Exception;

        /** Ends this direction, and reads the end of the other: -1. */
        int end() throws Exception;

        String session();
    }

    static final class SocketStream implements Stream {
        final SSLSocket socket;

        SocketStream(Socket socket) {
            this.socket = (SSLSocket) socket;
        }

        @Override
        public void write(byte[] data) throws IOException {
            socket.getOutputStream().write(data);
        }

        @Override
        public byte[] read(int n) throws IOException {
            byte[] data = socket.getInputStream().readNBytes(n);
            if (data.length < n) {
                throw new EOFException();
            }
            return data;
        }

        @Override
        public int end() throws IOException {
            socket.shutdownOutput();
            int end = socket.getInputStream().read();
            socket.close();
            return end;
        }

        @Override
        public String session() {
            return socket.getSession().getProtocol();
        }
    }

    /** SSLEngine over a channel that does not block, with a Selector of its own to wait. */
    static final class EngineStream implements Stream {
        final SocketChannel channel;
        final SSLEngine engine;
        final Selector selector = Selector.open();
        final SelectionKey key;
        final ByteBuffer in;
        final ByteBuffer out;
        final ByteBuffer plain;

        EngineStream(SocketChannel channel, boolean client) throws Exception {
            this.channel = channel;
            channel.configureBlocking(false);
            key = channel.register(selector, SelectionKey.OP_READ);
            engine = SSLContext.getDefault().createSSLEngine("localhost", 0);
            engine.setUseClientMode(client);
            in = ByteBuffer.allocateDirect(engine.getSession().getPacketBufferSize()).limit(0);
            out = ByteBuffer.allocateDirect(engine.getSession().getPacketBufferSize());
            plain = ByteBuffer.allocate(engine.getSession().getApplicationBufferSize()).limit(0);
            engine.beginHandshake();
            shakeHands();
        }

        void await(int operation) throws IOException {
            key.interestOps(operation);
            selector.selectedKeys().clear();
            selector.select();
        }

        void wrap(ByteBuffer source) throws IOException {
            engine.wrap(source, out.clear());
            out.flip();
            while (out.hasRemaining()) {
                if (channel.write(out) == 0) {
                    await(SelectionKey.OP_WRITE);
                }
            }
        }

        /** One record; false at the end. */
        boolean unwrap() throws IOException {
            while (true) {
                plain.compact();
                SSLEngineResult result = engine.unwrap(in, plain);
                plain.flip();
                if (result.getStatus() == SSLEngineResult.Status.CLOSED) {
                    return false;
                }
                if (result.getStatus() == SSLEngineResult.Status.OK) {
                    return true;
                }
                in.compact();
                int n = channel.read(in);
                in.flip();
                if (n < 0) {
                    return false;
                }
                if (n == 0) {
                    await(SelectionKey.OP_READ);
                }
            }
        }

        void shakeHands() throws IOException {
            while (true) {
                HandshakeStatus status = engine.getHandshakeStatus();
                if (status == HandshakeStatus.NEED_WRAP) {
                    wrap(ByteBuffer.allocate(0));
                } else if (status == HandshakeStatus.NEED_UNWRAP) {
                    if (!unwrap()) {
                        throw new EOFException("in the handshake");
                    }
                } else if (status == HandshakeStatus.NEED_TASK) {
                    for (Runnable task; (task = engine.getDelegatedTask()) != null;) {
                        task.run();
                    }
                } else {
                    return;
                }
            }
        }

        @Override
        public void write(byte[] data) throws IOException {
            ByteBuffer source = ByteBuffer.wrap(data);
            while (source.hasRemaining()) {
                wrap(source);
            }
        }

        @Override
        public byte[] read(int n) throws IOException {
            byte[] data = new byte[n];
            int at = 0;
            while (at < n) {
                if (!plain.hasRemaining() && !unwrap()) {
                    throw new EOFException();
                }
                int part = Math.min(n - at, plain.remaining());
                plain.get(data, at, part);
                at += part;
            }
            return data;
        }

        @Override
        public int end() throws IOException {
            engine.closeOutbound();
            wrap(ByteBuffer.allocate(0));
            int end = plain.hasRemaining() || !engine.isInboundDone() && unwrap() ? 0 : -1;
            channel.close();
            selector.close();
            return end;
        }

        @Override
        public String session() {
            return engine.getSession().getProtocol();
        }
    }

    static void serve(Stream stream) throws Exception {
        int number = new DataInputStream(new ByteArrayInputStream(stream.read(4))).readInt();
        byte[] body = stream.read(size(number));
        stream.write(Noise.bytes(-number - 1, size(number)));
        stream.write(String.format("%-20s", Noise.sum(body)).getBytes());
        stream.end();
    }

    static String transfer(Stream stream, int number) throws Exception {
        stream.write(ByteBuffer.allocate(4).putInt(number).array());
        byte[] body = Noise.bytes(number, size(number));
        stream.write(body);
        String expected = Noise.sum(Noise.bytes(-number - 1, body.length));
        boolean right = Noise.sum(stream.read(body.length)).equals(expected);
        String sum = new String(stream.read(20)).trim();
        return stream.session() + " " + right + " " + sum.equals(Noise.sum(body)) + " " + stream.end();
    }

    static void server(String way) throws Exception {
        if (way.equals("socket")) {
            try (SSLServerSocket server =
                    (SSLServerSocket) SSLServerSocketFactory.getDefault().createServerSocket(0, 50)) {
                Noise.listening(server.getLocalPort());
                while (true) {
                    Socket socket = server.accept();
                    Noise.spawn("server", () -> {
                        serve(new SocketStream(socket));
                        return null;
                    });
                }
            }
        }
        try (ServerSocketChannel server = ServerSocketChannel.open().bind(null, 50)) {
            Noise.listening(((InetSocketAddress) server.getLocalAddress()).getPort());
            while (true) {
                SocketChannel channel = server.accept();
                Noise.spawn("server", () -> {
                    serve(new EngineStream(channel, false));
                    return null;
                });
            }
        }
    }

    static Stream connect(String way, int port) throws Exception {
        InetAddress host = InetAddress.getLoopbackAddress();
        if (way.equals("socket")) {
            return new SocketStream(SSLSocketFactory.getDefault().createSocket(host, port));
        }
        return new EngineStream(SocketChannel.open(new InetSocketAddress(host, port)), true);
    }

    static void client(String way, int port) throws Exception {
        List<Thread> threads = new ArrayList<>();
        String[] results = new String[CONNECTIONS];
        long start = System.nanoTime();
        for (int i = 0; i < CONNECTIONS; i++) {
            int number = i;
            threads.add(Noise.spawn("client", () -> results[number] = transfer(connect(way, port), number)));
        }
        long bytes = 0;
        for (int i = 0; i < CONNECTIONS; i++) {
            threads.get(i).join();
            Noise.say(i, results[i]);
            bytes += 2L * size(i);
        }
        System.out.println("rate " + bytes * 1000 / (System.nanoTime() - start));
    }

    public static void main(String[] args) throws Exception {
        Noise.watchdog(110);
        if (args[0].equals("server")) {
            server(args[1]);
        } else {
            client(args[2], Integer.parseInt(args[1]));
        }
    }
}
