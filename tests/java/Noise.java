// What the programs of test_java_programs.py have in common: bytes that a seed determines, a stream that
// has been in use for a while, and results that are printed line by line.

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.SplittableRandom;
import java.util.zip.CRC32C;

final class Noise {
    private Noise() {}

    interface Work<T> {
        T run() throws Exception;
    }

    static byte[] bytes(long seed, int n) {
        byte[] out = new byte[n];
        new SplittableRandom(seed).nextBytes(out);
        return out;
    }

    static String sum(byte[] data) {
        return sum(ByteBuffer.wrap(data));
    }

    static String sum(ByteBuffer data) {
        CRC32C crc = new CRC32C();
        int n = data.remaining();
        crc.update(data);
        return n + ":" + Long.toHexString(crc.getValue());
    }

    static void listening(int port) {
        System.out.println("listening " + port);
        System.out.flush();
    }

    static void say(Object... words) {
        StringBuilder line = new StringBuilder("saw");
        for (Object word : words) {
            line.append(' ').append(word);
        }
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    /** What the work returns or throws, as text. */
    static String outcome(Work<?> work) {
        try {
            return String.valueOf(work.run());
        } catch (Throwable error) {
            Throwable cause = error.getCause();
            return error + (cause == null ? "" : " / " + cause);
        }
    }

    static Thread spawn(String name, Work<?> work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable error) {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        }, name);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    /** Ends the program with the stacks of its threads if it hangs. */
    static void watchdog(int seconds) {
        spawn("watchdog", () -> {
            Thread.sleep(seconds * 1000L);
            System.err.println("HANGS after " + seconds + " s");
            Thread.getAllStackTraces().forEach((thread, frames) -> {
                System.err.println(thread);
                for (StackTraceElement frame : frames) {
                    System.err.println("    " + frame);
                }
            });
            Runtime.getRuntime().halt(3);
            return null;
        });
    }

    // ---- a stream in use: long enough for whoever wants to move it ----

    static final int ROUNDS = 50;
    static final int SIZE = 64;

    static void use(InputStream in, OutputStream out) throws Exception {
        for (int i = 0; i < ROUNDS; i++) {
            out.write(bytes(i, SIZE));
            if (!sum(in.readNBytes(SIZE)).equals(sum(bytes(i, SIZE)))) {
                throw new IOException("wrong echo in round " + i);
            }
            Thread.sleep(2);
        }
    }

    static void serveUse(InputStream in, OutputStream out) throws IOException {
        for (int i = 0; i < ROUNDS; i++) {
            byte[] data = in.readNBytes(SIZE);
            if (data.length < SIZE) {
                throw new EOFException("in round " + i);
            }
            out.write(data);
        }
    }

    static void readFully(SocketChannel channel, ByteBuffer into) throws IOException {
        while (into.hasRemaining()) {
            if (channel.read(into) < 0) {
                throw new EOFException(into.remaining() + " bytes missing");
            }
        }
    }

    static void use(SocketChannel channel) throws Exception {
        for (int i = 0; i < ROUNDS; i++) {
            channel.write(ByteBuffer.wrap(bytes(i, SIZE)));
            ByteBuffer in = ByteBuffer.allocate(SIZE);
            readFully(channel, in);
            if (!sum(in.flip()).equals(sum(bytes(i, SIZE)))) {
                throw new IOException("wrong echo in round " + i);
            }
            Thread.sleep(2);
        }
    }

    // ---- a peer that does what it is told ----

    /** Echoes the rounds of use(), and then obeys: a letter and a number each. */
    static void obey(Socket socket) throws Exception {
        DataInputStream in = new DataInputStream(socket.getInputStream());
        DataOutputStream out = new DataOutputStream(socket.getOutputStream());
        serveUse(in, out);
        while (true) {
            int command = in.read();
            if (command < 0) {
                out.close();
                return;
            }
            int number = in.readInt();
            switch (command) {
                case 'e':  // echo
                    out.write(in.readNBytes(number));
                    break;
                case 's':  // send
                    out.write(bytes(number, number));
                    break;
                case 'g':  // get, and say what it was
                    out.writeUTF(sum(in.readNBytes(number)));
                    break;
                case 'w':  // wait
                    Thread.sleep(number);
                    break;
                case 'h':  // half close
                    socket.shutdownOutput();
                    break;
                case 'a':  // read all there is, and say what it was
                    out.writeUTF(sum(in.readAllBytes()));
                    socket.close();
                    return;
                case 'c':
                    socket.close();
                    return;
                case 'r':  // reset
                    socket.setSoLinger(true, 0);
                    socket.close();
                    return;
                default:
                    throw new IOException("what is " + command);
            }
        }
    }

    static byte[] command(int letter, int number) {
        return ByteBuffer.allocate(5).put((byte) letter).putInt(number).array();
    }

    static void tell(Socket socket, int letter, int number) throws IOException {
        socket.getOutputStream().write(command(letter, number));
    }

    static void tell(SocketChannel channel, int letter, int number) throws IOException {
        channel.write(ByteBuffer.wrap(command(letter, number)));
    }
}
