// Processes started while streams transfer. Neither may disturb the other.
//
//   java [-Djdk.lang.Process.launchMechanism=...] Children server      prints "listening PORT"
//   java [...] Children client PORT
//
// Both sides start children all the time; the client's streams, some of them idle meanwhile, live through it.

import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

final class Children {
    static final int STREAMS = 6;
    static final int ROUNDS = 40;
    static final int SIZE = 200_000;
    static final int CHILDREN = 15;

    static Process start(String... command) throws IOException {
        return new ProcessBuilder(command).redirectErrorStream(true).start();
    }

    static String run(String input, String... command) throws Exception {
        Process process = start(command);
        try (OutputStream out = process.getOutputStream()) {
            out.write(input.getBytes());
        }
        String output = new String(process.getInputStream().readAllBytes());
        if (!process.waitFor(60, TimeUnit.SECONDS)) {
            throw new IOException(String.join(" ", command) + " hangs");
        }
        return process.exitValue() + ":" + output.strip();
    }

    /** The bytes that go through a child's pipes. */
    static String through(int size, String... command) throws Exception {
        Process process = start(command);
        byte[] data = Noise.bytes(size, size);
        Thread writer = Noise.spawn("writer", () -> {
            try (OutputStream out = process.getOutputStream()) {
                out.write(data);
            }
            return null;
        });
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        process.getInputStream().transferTo(all);
        writer.join();
        return process.waitFor() + ":" + Noise.sum(all.toByteArray()).equals(Noise.sum(data));
    }

    static void serve(Socket socket) throws Exception {
        try (socket) {
            InputStream in = socket.getInputStream();
            OutputStream out = socket.getOutputStream();
            while (true) {
                byte[] size = in.readNBytes(4);
                if (size.length == 0) {
                    return;
                }
                int n = ByteBuffer.wrap(size).getInt();
                out.write(in.readNBytes(n));
            }
        }
    }

    static void server() throws Exception {
        try (ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            Noise.listening(server.getLocalPort());
            Noise.spawn("children", () -> {
                for (int i = 0; i < CHILDREN; i++) {
                    String got = run("of the server " + i, "cat");
                    if (!got.equals("0:of the server " + i)) {
                        throw new IOException(got);
                    }
                    Thread.sleep(20);
                }
                return null;
            });
            while (true) {
                Socket socket = server.accept();
                Noise.spawn("server", () -> {
                    serve(socket);
                    return null;
                });
            }
        }
    }

    static Socket connect(int port) throws IOException {
        Socket socket = new Socket(InetAddress.getLoopbackAddress(), port);
        socket.setTcpNoDelay(true);
        return socket;
    }

    static void round(Socket socket, int number, int size) throws Exception {
        byte[] data = Noise.bytes(number, size);
        socket.getOutputStream().write(ByteBuffer.allocate(4).putInt(size).array());
        Thread writer = Noise.spawn("writer", () -> {
            socket.getOutputStream().write(data);
            return null;
        });
        byte[] got = new byte[size];
        new DataInputStream(socket.getInputStream()).readFully(got);
        writer.join();
        if (!Noise.sum(got).equals(Noise.sum(data))) {
            throw new IOException("wrong bytes in round " + number);
        }
    }

    static void client(int port) throws Exception {
        List<Socket> idle = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < STREAMS; i++) {
            Socket quiet = connect(port);
            for (int k = 0; k < 30; k++) {
                round(quiet, k, 1000);
            }
            idle.add(quiet);
            int number = i;
            threads.add(Noise.spawn("stream", () -> {
                try (Socket socket = connect(port)) {
                    for (int k = 0; k < ROUNDS; k++) {
                        round(socket, number * ROUNDS + k, SIZE);
                        Thread.sleep(10);
                    }
                }
                return null;
            }));
        }
        Process endures = start("cat");  // lives as long as the streams
        for (int i = 0; i < CHILDREN; i++) {
            Noise.say(run("line " + i + "\n", "cat"), run("", "sh", "-c", "echo $((6 * 7)); exit " + i),
                    through(300_000, "cat"), Noise.outcome(() -> start("no-such-program")));
            // What a child has inherited: its standard streams, and what ls itself opens.
            Noise.say("descriptors", run("", "sh", "-c", "ls /proc/self/fd | wc -l"));
        }
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        Noise.say("another java", run("", java, "-XX:+UseSerialGC", "-cp",
                System.getProperty("java.class.path"), "Children", "client-alone", String.valueOf(port)));
        for (Thread thread : threads) {
            thread.join();
        }
        for (int i = 0; i < STREAMS; i++) {
            for (int k = 0; k < 30; k++) {
                round(idle.get(i), k, 5000);
            }
            idle.get(i).close();
        }
        endures.destroy();
        Noise.say("all rounds", ROUNDS * STREAMS, endures.waitFor());
        // Streams that are opened after it all.
        try (Socket socket = connect(port)) {
            for (int k = 0; k < 50; k++) {
                round(socket, k, 20_000);
                Thread.sleep(2);
            }
        }
        Noise.say("one more stream");
    }

    public static void main(String[] args) throws Exception {
        Noise.watchdog(110);
        switch (args[0]) {
            case "server":
                server();
                break;
            case "client":
                client(Integer.parseInt(args[1]));
                break;
            default:
                try (Socket socket = connect(Integer.parseInt(args[1]))) {
                    for (int k = 0; k < 50; k++) {
                        round(socket, k, 10_000);
                    }
                }
                Noise.say("alone");
        }
    }
}
