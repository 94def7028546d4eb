// What the connections of Check carry, and how every byte of it is checked; Check.java describes
// the format.

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.SplittableRandom;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32C;

/** The state of one connection, on either side, whatever the kind of socket below it. */
final class CheckedConnection {
    static final int MAX_MESSAGE = 1 << 20;
    static final int HEADER = 32;
    private static final long MAGIC = 0x5349444553544550L;
    private final ByteBuffer header = ByteBuffer.allocate(HEADER);
    private final CountDownLatch known = new CountDownLatch(1);
    private static final AtomicLong accepted = new AtomicLong();
    private final boolean client;
    private final long order;
    private final AtomicInteger halves = new AtomicInteger(2);
    long number = -1;
    long payload;
    volatile Source source;
    volatile Sink sink;

    /** A client's connection. */
    CheckedConnection(long seed, long number, long payload) {
        client = true;
        order = number;
        header.putLong(MAGIC).putLong(seed).putLong(number).putLong(payload).flip();
        start(seed, number, payload);
    }

    /** A server's connection: the header says what it carries. */
    CheckedConnection() {
        client = false;
        order = accepted.getAndIncrement();
    }

    private void start(long seed, long number, long payload) {
        this.number = number;
        this.payload = payload;
        sink = new Sink("connection " + number, Pattern.key(seed, number, !client), payload);
        source = new Source(client ? header : null, Pattern.key(seed, number, client), payload);
        known.countDown();
    }

    /** True when the source and the sink are there. */
    boolean ready() {
        return source != null;
    }

    void awaitReady() throws InterruptedException {
        known.await();
    }

    int nextReadSize() {
        return ready() ? sink.nextReadSize() : HEADER;
    }

    void received(ByteBuffer in) throws IOException {
        if (!ready()) {
            while (in.hasRemaining() && header.hasRemaining()) {
                header.put(in.get());
            }
            if (!header.hasRemaining()) {
                if (header.getLong(0) != MAGIC) {
                    throw new IOException("a connection starts with a wrong header");
                }
                start(header.getLong(8), header.getLong(16), header.getLong(24));
            }
        }
        if (in.hasRemaining()) {
            sink.accept(in);
        }
    }

    void receivedEnd() throws IOException {
        if (!ready()) {
            throw new EOFException("a connection ended inside its header");
        }
        sink.end();
    }

    /** Called once by each direction when it is through; true for the last one. */
    boolean halfDone() {
        return halves.decrementAndGet() == 0;
    }

    /** Connections differ in the calls that they use: this picks one of n ways. */
    int variant(int n) {
        return (int) (order % n);
    }

    /**
     * A stream's contents as a function of its key. The stream is cut into segments, and each
     * segment is a piece of one random block, taken from a place that the key and the segment's
     * number decide. Lost, repeated and swapped bytes all change what is found, and making and
     * comparing are block operations.
     */
    static final class Pattern {
        private static final int PLACES = 1 << 20;
        private static final int SEGMENT = 65521;
        private static final byte[] BLOCK = new byte[PLACES + SEGMENT];

        static {
            new SplittableRandom(0x51de57e9L).nextBytes(BLOCK);
        }

        private final long key;
        private long offset;

        Pattern(long key) {
            this.key = key;
        }

        static long mix(long z) {
            z += 0x9e3779b97f4a7c15L;
            z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L;
            z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
            return z ^ (z >>> 31);
        }

        static long key(long seed, long connection, boolean fromClient) {
            return mix(mix(seed) ^ (connection << 1) ^ (fromClient ? 1 : 0));
        }

        long offset() {
            return offset;
        }

        /** The next bytes of the stream: at most {@code limit}, and within one segment. */
        ByteBuffer next(long limit) {
            int inSegment = (int) (offset % SEGMENT);
            int place = (int) (mix(key + offset / SEGMENT) & (PLACES - 1));
            int n = (int) Math.min(limit, SEGMENT - inSegment);
            offset += n;
            return ByteBuffer.wrap(BLOCK, place + inSegment, n);
        }
    }

    /** Sizes between 1 byte and 1 MiB, every order of magnitude equally often. */
    static int randomSize(SplittableRandom random) {
        int bits = random.nextInt(21);
        return Math.min(MAX_MESSAGE, (1 << bits) + random.nextInt(1 << bits));
    }

    /** What one end sends: [header] payload length crc. */
    static final class Source {
        private final Pattern pattern;
        private final long payload;
        private final SplittableRandom sizes;
        private final CRC32C crc = new CRC32C();
        private ByteBuffer header;
        private ByteBuffer trailer;

        Source(ByteBuffer header, long key, long payload) {
            this.header = header;
            this.pattern = new Pattern(key);
            this.payload = payload;
            this.sizes = new SplittableRandom(key + 1);
        }

        boolean done() {
            return trailer != null && !trailer.hasRemaining();
        }

        /** Fills the buffer with the next message and flips it. */
        void nextMessage(ByteBuffer out) {
            out.clear();
            out.limit(randomSize(sizes));
            if (header != null) {
                out.limit(Math.max(out.limit(), header.remaining()));
                out.put(header);
                header = null;
            }
            while (out.hasRemaining() && pattern.offset() < payload) {
                ByteBuffer piece =
                        pattern.next(Math.min(out.remaining(), payload - pattern.offset()));
                crc.update(piece.duplicate());
                out.put(piece);
            }
            if (pattern.offset() == payload) {
                if (trailer == null) {
                    trailer = ByteBuffer.allocate(Sink.TRAILER);
                    trailer.putLong(payload).putLong(crc.getValue()).flip();
                }
                int n = Math.min(out.remaining(), trailer.remaining());
                out.put(trailer.slice().limit(n));
                trailer.position(trailer.position() + n);
            }
            out.flip();
        }
    }

    /** Checks what one end receives. */
    static final class Sink {
        static final int TRAILER = 16;
        private final String name;
        private final CRC32C crc = new CRC32C();
        private final ByteBuffer trailer = ByteBuffer.allocate(TRAILER);
        private final SplittableRandom sizes;
        private final Pattern pattern;
        private final long payload;
        private boolean ended;

        Sink(String name, long key, long payload) {
            this.name = name;
            this.pattern = new Pattern(key);
            this.payload = payload;
            this.sizes = new SplittableRandom(key + 2);
        }

        boolean ended() {
            return ended;
        }

        int nextReadSize() {
            return randomSize(sizes);
        }

        void accept(ByteBuffer in) throws IOException {
            while (in.hasRemaining() && pattern.offset() < payload) {
                long at = pattern.offset();
                ByteBuffer expected =
                        pattern.next(Math.min(in.remaining(), payload - pattern.offset()));
                ByteBuffer got = in.slice(in.position(), expected.remaining());
                int bad = expected.mismatch(got);
                if (bad >= 0) {
                    throw new IOException(name + ": wrong byte at offset " + (at + bad) + " of "
                            + payload + ": got " + (got.get(bad) & 255) + ", expected "
                            + (expected.get(expected.position() + bad) & 255));
                }
                crc.update(got);
                in.position(in.position() + expected.remaining());
            }
            if (in.hasRemaining()) {
                if (in.remaining() > trailer.remaining()) {
                    throw new IOException(name + ": bytes after the end of the stream");
                }
                trailer.put(in);
            }
        }

        void end() throws IOException {
            if (trailer.hasRemaining()) {
                throw new EOFException(name + ": stream ended at " + pattern.offset() + " of "
                        + payload + " bytes and " + trailer.position() + " of the trailer");
            }
            if (trailer.getLong(0) != payload || trailer.getLong(8) != crc.getValue()) {
                throw new IOException(name + ": length or checksum is wrong");
            }
            ended = true;
        }
    }
}
