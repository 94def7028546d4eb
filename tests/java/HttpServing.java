// The JDK's HTTP server, and its two clients: HttpClient and HttpURLConnection.
//
//   java HttpServing server      prints "listening PORT"
//   java HttpServing client PORT [VERSION]    VERSION: of HttpClient.Version, and only HttpClient
//
// /sum answers with the checksum of the body, /echo with the body, /chunks/N with N bytes in chunks,
// /close with the end of the connection. The client prints a line for each kind of request, and
// "rate N" with small requests in a second.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.URL;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;

final class HttpServing {
    static final int[] SIZES = {1, 100, 8191, 65536, 1_000_003, 10 << 20};
    static final int CONCURRENT = 60;
    static final int CONCURRENT_HTTP_2 = 16;  // Tomcat works on 20, and others hold the connection's window
    static final int RATED = 1000;

    // ---- server ----

    static void answer(HttpExchange exchange, byte[] body) throws IOException {
        exchange.sendResponseHeaders(200, body.length == 0 ? -1 : body.length);
        if (body.length > 0) {
            exchange.getResponseBody().write(body);
        }
        exchange.close();
    }

    static void server() throws IOException {
        HttpServer server = HttpServer.create(
                new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 100);
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.createContext("/sum", exchange ->
                answer(exchange, Noise.sum(exchange.getRequestBody().readAllBytes()).getBytes()));
        server.createContext("/echo", exchange -> answer(exchange, exchange.getRequestBody().readAllBytes()));
        server.createContext("/chunks/", exchange -> {
            String path = exchange.getRequestURI().getPath();
            byte[] body = Noise.bytes(3, Integer.parseInt(path.substring(path.lastIndexOf('/') + 1)));
            exchange.sendResponseHeaders(200, 0);
            try (OutputStream out = exchange.getResponseBody()) {
                for (int at = 0; at < body.length; at += 10_007) {
                    out.write(body, at, Math.min(10_007, body.length - at));
                    out.flush();
                }
            }
        });
        server.createContext("/close", exchange -> {
            exchange.sendResponseHeaders(200, 1000);  // of which it sends only a part
            exchange.getResponseBody().write(new byte[10]);
            exchange.close();
        });
        server.start();
        Noise.listening(server.getAddress().getPort());
    }

    // ---- clients ----

    static HttpClient client;
    static String base;

    static HttpRequest request(String path, BodyPublisher body) {
        return HttpRequest.newBuilder(URI.create(base + path)).timeout(Duration.ofSeconds(60)).POST(body)
                .build();
    }

    static String post(String path, BodyPublisher body) throws Exception {
        HttpResponse<byte[]> response = client.send(request(path, body), BodyHandlers.ofByteArray());
        byte[] got = response.body();
        return response.statusCode() + " " + response.version() + " "
                + (path.equals("/sum") ? new String(got) : Noise.sum(got));
    }

    static void useHttpClient(HttpClient.Version version) throws Exception {
        client = HttpClient.newBuilder().version(version).build();
        for (int size : SIZES) {
            byte[] body = Noise.bytes(size, size);
            Noise.say("sum of", size, post("/sum", BodyPublishers.ofByteArray(body)));
            Noise.say("echo of", size, post("/echo", BodyPublishers.ofByteArray(body)));
            // Of a length that the client does not know: in chunks.
            Noise.say("chunked sum of", size, post("/sum",
                    BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body))));
        }
        Noise.say("chunked answer", post("/chunks/3000000", BodyPublishers.noBody()));
        Noise.say("not found", post("/nowhere", BodyPublishers.noBody()));
        List<CompletableFuture<HttpResponse<byte[]>>> answers = new ArrayList<>();
        int concurrent = version == HttpClient.Version.HTTP_2 ? CONCURRENT_HTTP_2 : CONCURRENT;
        for (int i = 0; i < concurrent; i++) {
            byte[] body = Noise.bytes(i, 1 + 3000 * i);
            answers.add(client.sendAsync(request("/echo", BodyPublishers.ofByteArray(body)),
                    BodyHandlers.ofByteArray()));
        }
        for (int i = 0; i < concurrent; i++) {
            Noise.say("concurrent", i, Noise.sum(answers.get(i).get().body()));
        }
        long start = System.nanoTime();
        for (int i = 0; i < RATED; i++) {
            if (!post("/sum", BodyPublishers.ofString("x" + i)).startsWith("200")) {
                throw new IOException("request " + i);
            }
        }
        System.out.println("rate " + RATED * 1_000_000_000L / (System.nanoTime() - start));
    }

    static void useUrlConnection() throws Exception {
        for (int size : SIZES) {
            for (boolean chunked : new boolean[] {false, true}) {
                HttpURLConnection connection = (HttpURLConnection) new URL(base + "/echo").openConnection();
                connection.setReadTimeout(60_000);
                connection.setDoOutput(true);
                if (chunked) {
                    connection.setChunkedStreamingMode(5000);
                } else {
                    connection.setFixedLengthStreamingMode(size);
                }
                try (OutputStream out = connection.getOutputStream()) {
                    out.write(Noise.bytes(size, size));
                }
                try (InputStream in = connection.getInputStream()) {
                    Noise.say("URLConnection", size, chunked, connection.getResponseCode(),
                            Noise.sum(in.readAllBytes()));
                }
            }
        }
        Noise.say("not found", Noise.outcome(
                () -> new URL(base + "/nowhere").openStream()).replaceAll(":\\d+/", ":PORT/"));
        Noise.say("cut off", Noise.outcome(() -> {
            try (InputStream in = new URL(base + "/close").openStream()) {
                return in.readAllBytes().length;
            }
        }));
    }

    public static void main(String[] args) throws Exception {
        Noise.watchdog(110);
        if (args[0].equals("server")) {
            server();
            return;
        }
        base = "http://127.0.0.1:" + args[1];
        if (args.length > 2) {
            useHttpClient(HttpClient.Version.valueOf(args[2]));
        } else {
            useHttpClient(HttpClient.Version.HTTP_1_1);
            useUrlConnection();
        }
    }
}
