// The processor time that connected but idle JVMs use.
//
//   java Idle server MODE PORT CONNECTIONS SECONDS
//   java Idle client MODE HOST PORT CONNECTIONS SECONDS
//
// MODE is blocking (a thread waits in read on every connection) or selector (one thread waits in
// select). Every connection carries one message each way; then, after two seconds for the JVM to
// settle, both sides wait for SECONDS and print the processor time that their process used
// meanwhile. A second message each way shows that the connections are still alive.

import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

public final class Idle {
    private static final int MESSAGE = 64;
    private static final long SETTLE_MS = 2000;
    private static final long LIMIT_MS = 60_000;

    /** A number of events, which others wait for. */
    static final class Count {
        private final String what;
        private int events;

        Count(String what) {
            this.what = what;
        }

        synchronized void add() {
            events++;
            notifyAll();
        }

        synchronized void await(int n) throws InterruptedException, IOException {
            long stop = System.currentTimeMillis() + LIMIT_MS;
            while (events < n) {
                long left = stop - System.currentTimeMillis();
                if (left <= 0) {
                    throw new IOException(events + " of " + n + " " + what);
                }
                wait(left);
            }
        }
    }

    private static final Count ARRIVED = new Count("messages arrived");
    private static final Count ENDED = new Count("connections ended");

    static void fail(Throwable error) {
        error.printStackTrace();
        System.exit(1);
    }

    static void daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
    }

    /** Counts whole messages of one connection. */
    static final class Reader {
        private final ByteBuffer in = ByteBuffer.allocateDirect(MESSAGE);
        private final SocketChannel channel;

        Reader(SocketChannel channel) {
            this.channel = channel;
        }

        boolean readOnce() throws IOException {
            if (channel.read(in) < 0) {
                return false;
            }
            if (!in.hasRemaining()) {
                in.clear();
                ARRIVED.add();
            }
            return true;
        }
    }

    static void receiveBlocking(List<SocketChannel> channels) {
        for (SocketChannel channel : channels) {
            Reader reader = new Reader(channel);
            daemon(() -> {
                try {
                    while (reader.readOnce()) {
                    }
                    ENDED.add();
                } catch (ClosedChannelException closedHere) {
                    // by main, which has seen all that it waits for
                } catch (IOException error) {
                    fail(error);
                }
            });
        }
    }

    static void receiveSelector(List<SocketChannel> channels) throws IOException {
        Selector selector = Selector.open();
        for (SocketChannel channel : channels) {
            channel.configureBlocking(false);
            channel.register(selector, SelectionKey.OP_READ, new Reader(channel));
        }
        daemon(() -> {
            try {
                while (true) {
                    selector.select();
                    for (SelectionKey key : selector.selectedKeys()) {
                        if (!((Reader) key.attachment()).readOnce()) {
                            key.cancel();
                            ENDED.add();
                        }
                    }
                    selector.selectedKeys().clear();
                }
            } catch (ClosedChannelException closedHere) {
                // by main, which has seen all that it waits for
            } catch (IOException error) {
                fail(error);
            }
        });
    }

    static void sendAll(List<SocketChannel> channels) throws IOException {
        for (SocketChannel channel : channels) {
            ByteBuffer out = ByteBuffer.allocate(MESSAGE);
            while (out.hasRemaining()) {
                channel.write(out);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        boolean server = args.length == 5 && args[0].equals("server");
        boolean client = args.length == 6 && args[0].equals("client");
        if (!server && !client || !args[1].matches("blocking|selector")) {
            System.err.println("usage: java Idle server MODE PORT CONNECTIONS SECONDS\n"
                    + "       java Idle client MODE HOST PORT CONNECTIONS SECONDS\n"
                    + "MODE: blocking or selector");
            System.exit(2);
        }
        int connections = Integer.parseInt(args[args.length - 2]);
        double seconds = Double.parseDouble(args[args.length - 1]);
        List<SocketChannel> channels = new ArrayList<>();
        if (server) {
            try (ServerSocketChannel listener = ServerSocketChannel.open()) {
                listener.bind(new InetSocketAddress(Integer.parseInt(args[2])), 1024);
                System.out.println(
                        "listening " + ((InetSocketAddress) listener.getLocalAddress()).getPort());
                System.out.flush();
                while (channels.size() < connections) {
                    channels.add(listener.accept());
                }
            }
        } else {
            InetSocketAddress address = new InetSocketAddress(args[2], Integer.parseInt(args[3]));
            while (channels.size() < connections) {
                channels.add(SocketChannel.open(address));
            }
        }
        for (SocketChannel channel : channels) {
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        }
        if (args[1].equals("blocking")) {
            receiveBlocking(channels);
        } else {
            receiveSelector(channels);
        }

        sendAll(channels);
        ARRIVED.await(connections);
        OperatingSystemMXBean system =
                (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        system.getProcessCpuTime();
        Thread.sleep(SETTLE_MS);
        long before = system.getProcessCpuTime();
        Thread.sleep((long) (seconds * 1000));
        long used = system.getProcessCpuTime() - before;
        // The other side may be a little behind: its idle period must not see our messages.
        Thread.sleep(SETTLE_MS / 2);
        sendAll(channels);
        ARRIVED.await(2 * connections);
        System.out.printf(Locale.ROOT, "idle %s %s connections=%d seconds=%.1f cpu_ms=%.1f%n",
                args[0], args[1], connections, seconds, used / 1e6);
        if (server) {  // the client closes first and takes the TIME_WAIT
            ENDED.await(connections);
        }
        for (SocketChannel channel : channels) {
            channel.close();
        }
    }
}
