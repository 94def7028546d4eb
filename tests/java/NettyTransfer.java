// Netty's NIO transport.
//
//   java NettyTransfer server KIND      prints "listening PORT"
//   java NettyTransfer client PORT KIND
//
// KIND is echo: many connections, each checks what comes back and half closes; or http: Netty's HTTP codec at
// both ends, pipelined requests with bodies of all sizes.

import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.ChannelInputShutdownEvent;
import io.netty.channel.socket.DuplexChannel;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.channel.socket.nio.NioSocketChannel;
import io.netty.handler.codec.http.DefaultFullHttpRequest;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpMessage;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpClientCodec;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpObjectAggregator;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpVersion;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;

final class NettyTransfer {
    static final int CONNECTIONS = 150;
    static final int SIZE = 1_000_000;
    static final int HTTP_CONNECTIONS = 10;
    static final int REQUESTS = 100;

    /** A handler that ends the program at the first exception. */
    abstract static class Strict<T> extends SimpleChannelInboundHandler<T> {
        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    // ---- echo ----

    /** Reads no further while what it writes can't leave. */
    static final class Echo extends ChannelInboundHandlerAdapter {
        @Override
        public void channelRead(ChannelHandlerContext context, Object data) {
            context.write(data);
        }

        @Override
        public void channelReadComplete(ChannelHandlerContext context) {
            context.flush();
        }

        @Override
        public void channelWritabilityChanged(ChannelHandlerContext context) {
            context.channel().config().setAutoRead(context.channel().isWritable());
        }

        @Override
        public void userEventTriggered(ChannelHandlerContext context, Object event) {
            if (event instanceof ChannelInputShutdownEvent) {
                context.writeAndFlush(Unpooled.EMPTY_BUFFER).addListener(ChannelFutureListener.CLOSE);
            }
        }
    }

    static final class EchoClient extends Strict<ByteBuf> {
        final byte[] data;
        final byte[] got = new byte[SIZE];
        final CountDownLatch left;
        final AtomicLong right;
        int sent;
        int received;

        EchoClient(int number, CountDownLatch left, AtomicLong right) {
            data = Noise.bytes(number, SIZE);
            this.left = left;
            this.right = right;
        }

        void send(ChannelHandlerContext context) {
            while (sent < SIZE && context.channel().isWritable()) {
                int n = Math.min(SIZE - sent, 1 + (sent * 7 + 13) % 20_000);
                ChannelFuture written = context.writeAndFlush(Unpooled.wrappedBuffer(data, sent, n));
                sent += n;
                if (sent == SIZE) {
                    // Not before all is written: Netty would drop what waits.
                    written.addListener(done -> ((DuplexChannel) context.channel()).shutdownOutput());
                }
            }
        }

        @Override
        public void channelActive(ChannelHandlerContext context) {
            send(context);
        }

        @Override
        public void channelWritabilityChanged(ChannelHandlerContext context) {
            send(context);
        }

        @Override
        protected void channelRead0(ChannelHandlerContext context, ByteBuf piece) {
            int n = piece.readableBytes();
            piece.readBytes(got, received, n);
            received += n;
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) {
            if (received == SIZE && Noise.sum(got).equals(Noise.sum(data))) {
                right.addAndGet(received);
            } else {
                System.err.println(received + " bytes came back, first wrong one at "
                        + Arrays.mismatch(got, data));
            }
            left.countDown();
        }
    }

    // ---- http ----

    static final class HttpSum extends Strict<FullHttpRequest> {
        @Override
        protected void channelRead0(ChannelHandlerContext context, FullHttpRequest request) {
            byte[] body = ByteBufUtil.getBytes(request.content());
            String head = request.uri() + " " + Noise.sum(body) + "\n";
            FullHttpResponse response = new DefaultFullHttpResponse(HttpVersion.HTTP_1_1,
                    HttpResponseStatus.OK, Unpooled.wrappedBuffer(head.getBytes(), body));
            finish(response);
            context.writeAndFlush(response);
        }
    }

    static void finish(FullHttpMessage message) {
        message.headers().set(HttpHeaderNames.CONTENT_LENGTH, message.content().readableBytes());
    }

    static int bodySize(int request) {
        return request * request * 13;
    }

    static final class HttpClientHandler extends Strict<FullHttpResponse> {
        final int number;
        final CountDownLatch left;
        final AtomicLong right;
        int answers;

        HttpClientHandler(int number, CountDownLatch left, AtomicLong right) {
            this.number = number;
            this.left = left;
            this.right = right;
        }

        @Override
        public void channelActive(ChannelHandlerContext context) {
            for (int i = 0; i < REQUESTS; i++) {  // all of them, before the first answer
                ByteBuf body = Unpooled.wrappedBuffer(Noise.bytes(number * REQUESTS + i, bodySize(i)));
                FullHttpMessage request = new DefaultFullHttpRequest(HttpVersion.HTTP_1_1, HttpMethod.POST,
                        "/" + i, body);
                finish(request);
                context.writeAndFlush(request);
            }
        }

        @Override
        protected void channelRead0(ChannelHandlerContext context, FullHttpResponse response) {
            byte[] body = Noise.bytes(number * REQUESTS + answers, bodySize(answers));
            String head = "/" + answers + " " + Noise.sum(body) + "\n";
            ByteBuf expected = Unpooled.wrappedBuffer(head.getBytes(), body);
            if (response.status().equals(HttpResponseStatus.OK) && response.content().equals(expected)) {
                right.addAndGet(body.length);
            }
            if (++answers == REQUESTS) {
                context.close();
                left.countDown();
            }
        }
    }

    // ---- both ----

    static ChannelHandler initializer(Consumer<SocketChannel> set) {
        return new ChannelInitializer<SocketChannel>() {
            @Override
            protected void initChannel(SocketChannel channel) {
                set.accept(channel);
            }
        };
    }

    static void server(boolean http) throws Exception {
        ServerBootstrap bootstrap = new ServerBootstrap()
                .group(new NioEventLoopGroup(1), new NioEventLoopGroup(2))
                .channel(NioServerSocketChannel.class)
                .option(ChannelOption.SO_BACKLOG, 1000)
                .childOption(ChannelOption.ALLOW_HALF_CLOSURE, true)
                .childHandler(initializer(channel -> {
                    if (http) {
                        channel.pipeline().addLast(new HttpServerCodec(), new HttpObjectAggregator(1 << 24),
                                new HttpSum());
                    } else {
                        channel.pipeline().addLast(new Echo());
                    }
                }));
        Channel channel = bootstrap.bind(InetAddress.getLoopbackAddress(), 0).sync().channel();
        Noise.listening(((InetSocketAddress) channel.localAddress()).getPort());
        channel.closeFuture().sync();
    }

    static void client(boolean http, int port) throws Exception {
        EventLoopGroup group = new NioEventLoopGroup(2);
        int connections = http ? HTTP_CONNECTIONS : CONNECTIONS;
        CountDownLatch left = new CountDownLatch(connections);
        AtomicLong right = new AtomicLong();
        long start = System.nanoTime();
        for (int i = 0; i < connections; i++) {
            int number = i;
            new Bootstrap().group(group).channel(NioSocketChannel.class)
                    .option(ChannelOption.ALLOW_HALF_CLOSURE, false)
                    .handler(initializer(channel -> {
                        if (http) {
                            channel.pipeline().addLast(new HttpClientCodec(),
                                    new HttpObjectAggregator(1 << 24),
                                    new HttpClientHandler(number, left, right));
                        } else {
                            channel.pipeline().addLast(new EchoClient(number, left, right));
                        }
                    })).connect(InetAddress.getLoopbackAddress(), port).sync();
        }
        if (!left.await(90, TimeUnit.SECONDS)) {
            System.err.println(left.getCount() + " connections left");
            System.exit(1);
        }
        System.out.println("rate " + right.get() * 2000 / (System.nanoTime() - start));
        Noise.say(http ? "http" : "echo", connections, right.get());
        group.shutdownGracefully(0, 10, TimeUnit.SECONDS).sync();
    }

    public static void main(String[] args) {
        Noise.watchdog(110);
        try {
            if (args[0].equals("server")) {
                server(args[1].equals("http"));
            } else {
                client(args[2].equals("http"), Integer.parseInt(args[1]));
            }
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);  // Netty's threads would go on
        }
    }
}
