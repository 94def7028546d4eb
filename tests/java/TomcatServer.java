// Embedded Tomcat with one servlet that answers as the server of HttpServing does, whose client is used.
//
//   java TomcatServer server CONNECTOR BASE_DIRECTORY      prints "listening PORT"
//
// CONNECTOR is Http11NioProtocol or Http11Nio2Protocol; either takes an upgrade to HTTP/2.

import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import org.apache.catalina.Lifecycle;
import org.apache.catalina.connector.Connector;
import org.apache.catalina.core.StandardContext;
import org.apache.catalina.startup.Tomcat;
import org.apache.coyote.http2.Http2Protocol;

final class TomcatServer {
    static final class Servlet extends HttpServlet {
        private static final long serialVersionUID = 1;

        @Override
        protected void service(HttpServletRequest request, HttpServletResponse response) throws IOException {
            String path = request.getRequestURI();
            ServletOutputStream out = response.getOutputStream();
            if (path.equals("/sum")) {
                byte[] sum = Noise.sum(request.getInputStream().readAllBytes()).getBytes();
                response.setContentLength(sum.length);
                out.write(sum);
            } else if (path.equals("/echo")) {
                byte[] body = request.getInputStream().readAllBytes();
                response.setContentLength(body.length);
                out.write(body);
            } else if (path.startsWith("/chunks/")) {
                byte[] body = Noise.bytes(3, Integer.parseInt(path.substring(8)));
                for (int at = 0; at < body.length; at += 10_007) {
                    out.write(body, at, Math.min(10_007, body.length - at));
                    out.flush();
                }
            } else {
                response.setStatus(404);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        Noise.watchdog(110);
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(args[2]);
        Connector connector = new Connector("org.apache.coyote.http11." + args[1]);
        connector.setPort(0);
        connector.setProperty("address", "127.0.0.1");
        connector.setProperty("maxKeepAliveRequests", "-1");
        Http2Protocol http2 = new Http2Protocol();
        http2.setOverheadDataThreshold(0);  // it would take small pieces for an attack
        http2.setOverheadWindowUpdateThreshold(0);
        connector.addUpgradeProtocol(http2);
        tomcat.setConnector(connector);
        // Not addContext(): it looks for annotations, without whose classes Debian's jars come.
        StandardContext context = new StandardContext();
        context.setPath("");
        context.setDocBase(args[2]);
        context.setIgnoreAnnotations(true);
        context.addLifecycleListener(event -> {
            if (event.getType().equals(Lifecycle.CONFIGURE_START_EVENT)) {
                context.setConfigured(true);
            }
        });
        tomcat.getHost().addChild(context);
        Tomcat.addServlet(context, "all", new Servlet()).addMapping("/*");
        tomcat.start();
        Noise.listening(connector.getLocalPort());
        tomcat.getServer().await();
    }
}
