#!/usr/bin/env python3
"""Programs that use the JDK or third-party Java libraries see the same as on the kernel."""

import re
import socket
import subprocess
import time

import sidestep_harness
from sidestep_harness import BOTH, KERNEL, SidestepTestCase, java

MODES = (KERNEL, BOTH)
TIME_LIMIT = 120


def seen(program):
    """Returns the lines by which a program is compared, in its own order."""
    return [line for line in program.stdout.splitlines() if line.startswith("saw ")]


# Netty's native transport is left out: Debian's jars come without its library.
JARS = [f"/usr/share/java/{name}.jar" for name in (
    "netty-buffer", "netty-codec", "netty-codec-http", "netty-common", "netty-handler", "netty-resolver",
    "netty-transport", "tomcat10-embed-core", "zookeeper", "zookeeper-jute")]


def library_java(program, *args, options=()):
    """Like java(), for programs that use third-party libraries, and for those libraries' own programs."""
    build = sidestep_harness.build_dir()
    path = ":".join([str(build / "java"), str(build / "java-programs"), *JARS])
    return ["java", "-XX:+UseSerialGC", *options, "-cp", path, program, *map(str, args)]


class JavaTestCase(SidestepTestCase):
    def check_over_engine(self, *programs):
        for program in programs if sidestep_harness.AT_ONCE else ():
            for direction in ("tx", "rx"):
                self.assertGreater(program.engine_bytes(direction), 0,
                                   f"{program.name}: bytes over the engine, {direction}")

    def run_pair(self, mode, program, client_program=None, command=java, options=(), server_arguments=(),
                 client_arguments=lambda server: ()):
        server = self.start("server", command(program, "server", *server_arguments, options=options),
                            mode.server)
        port = server.wait_listening(timeout=60)
        client = self.start("client", command(client_program or program, "client", port,
                                              *client_arguments(server), options=options), mode.client)
        client.wait(TIME_LIMIT)
        server.stop(60)
        return server, client

    def check(self, program, share=None, **arguments):
        """Checks that the client prints equal lines in each mode; returns the programs' runs by mode."""
        expected, runs = None, {}
        for mode in MODES:
            with self.part(mode=mode.name):
                server, client = self.run_pair(mode, program, **arguments)
                if mode is KERNEL:
                    expected = seen(client)
                    self.assertTrue(expected)
                self.assertEqual(seen(client), expected)
                if mode is BOTH:
                    self.check_over_engine(server, client)
                    if share is not None and sidestep_harness.AT_ONCE:
                        self.assertGreaterEqual(server.engine_share(), share)
                runs[mode] = server, client
        return runs

    def rate(self, program):
        """Returns the rate that a client, or wrk, has measured itself."""
        return program.wait_output(r"^(?:rate|Requests/sec:) +([0-9.]+)$").group(1)

    def record_rates(self, program, work, unit, runs):
        if len(runs) == len(MODES):  # a failed part has no runs
            kernel, both = (float(self.rate(runs[mode][1])) for mode in MODES)
            self.record(program, work, runs[BOTH][0].engine_share(), unit, kernel=kernel, sidestep=both)


class Jdk(JavaTestCase):
    def check_endings(self, subject):
        self.check("Endings", client_arguments=lambda server: [
            subject, server.wait_output(r"^unreachable (\d+)$").group(1)])

    def test_sockets_closed_while_they_are_used(self):
        self.check_endings("close-sockets")

    def test_channels_closed_while_they_are_used(self):
        self.check_endings("close-channels")

    def test_channels_whose_threads_are_interrupted(self):
        self.check_endings("interrupt")

    def test_timeouts_and_refusals(self):
        self.check_endings("timeouts")

    def test_half_closes(self):
        self.check_endings("half-close")

    def test_peers_that_leave(self):
        self.check_endings("peers-that-leave")

    def test_selectors_and_keys(self):
        self.check_endings("selectors")

    def test_options(self):
        self.check_endings("options")

    def test_http(self):
        runs = self.check("HttpServing", share=0.5)
        self.record_rates("JDK HttpServer", "HttpClient, one connection, small POSTs", "requests/s", runs)

    def check_tls(self, way):
        store = self.directory / "keys"
        subprocess.run(["keytool", "-genkeypair", "-keystore", store, "-storepass", "secret", "-keyalg", "EC",
                        "-alias", "test", "-dname", "CN=localhost", "-validity", "30"],
                       check=True, capture_output=True, timeout=60)
        options = [f"-Djavax.net.ssl.{kind}{what}" for kind in ("keyStore", "trustStore")
                   for what in (f"={store}", "Password=secret")]
        runs = self.check("TlsTransfer", share=0.1, options=options, server_arguments=[way],
                          client_arguments=lambda server: [way])
        self.record_rates("Java TLS", f"SSL{way.capitalize()}, 8 connections both ways", "MB/s", runs)

    def test_tls_sockets(self):
        self.check_tls("socket")

    def test_tls_engines(self):
        self.check_tls("engine")

    def test_remote_objects(self):
        runs = self.check("RemoteObjects", share=0.3)
        self.record_rates("RMI", "8 threads, small calls", "calls/s", runs)

    def check_children(self, mechanism):
        self.check("Children", options=[f"-Djdk.lang.Process.launchMechanism={mechanism}"])

    def test_children_by_posix_spawn(self):
        self.check_children("POSIX_SPAWN")

    def test_children_by_vfork(self):
        self.check_children("VFORK")

    def test_children_by_fork(self):
        self.check_children("FORK")

    def test_mapped_files_that_are_cut(self):
        self.check("CutFile", share=0.3)

    def test_one_selector_for_everything(self):
        self.check("MixedSelector", share=0.3)


class Netty(JavaTestCase):
    def check_kind(self, kind, work):
        runs = self.check("NettyTransfer", share=0.1, command=library_java, server_arguments=[kind],
                          client_arguments=lambda server: [kind])
        self.record_rates("Netty", work, "MB/s", runs)

    def test_echo(self):
        self.check_kind("echo", "NIO, 150 connections, echo")

    def test_http(self):
        self.check_kind("http", "NIO, HTTP codec, 10 connections, pipelined POSTs")


class Tomcat(JavaTestCase):
    def check_connector(self, connector, version):
        runs = self.check("TomcatServer", share=0.5, client_program="HttpServing", command=library_java,
                          server_arguments=[connector, self.directory / "tomcat"],
                          client_arguments=lambda server: [version])
        self.record_rates("Tomcat", f"{connector}, HttpClient {version}, small POSTs", "requests/s", runs)

    def test_nio(self):
        self.check_connector("Http11NioProtocol", "HTTP_1_1")

    def test_nio2(self):
        self.check_connector("Http11Nio2Protocol", "HTTP_1_1")

    def test_nio_http2(self):
        self.check_connector("Http11NioProtocol", "HTTP_2")

    def test_nio2_http2(self):
        self.check_connector("Http11Nio2Protocol", "HTTP_2")

    def check_load(self, connector):
        runs = {}
        for mode in MODES:
            with self.part(mode=mode.name):
                server = self.start("tomcat", library_java("TomcatServer", "server", connector,
                                                           self.directory / "tomcat"), mode.server)
                port = server.wait_listening(timeout=60)
                load = self.start("wrk", ["wrk", "-t2", "-c50", "-d3s", "--timeout", "60s",
                                          f"http://127.0.0.1:{port}/chunks/1000"], mode.client)
                load.wait(TIME_LIMIT)
                server.stop(60)
                for trouble in ("Socket errors", "Non-2xx"):
                    self.assertNotIn(trouble, load.stdout)
                self.assertGreater(float(self.rate(load)), 0)
                if mode is BOTH:
                    self.check_over_engine(server, load)
                runs[mode] = server, load
        self.record_rates("Tomcat", f"{connector}, wrk, 50 connections", "requests/s", runs)

    def test_nio_under_load(self):
        self.check_load("Http11NioProtocol")

    def test_nio2_under_load(self):
        self.check_load("Http11Nio2Protocol")


class ZooKeeper(JavaTestCase):
    OPTIONS = ("-Dzookeeper.admin.enableServer=false", "-Dzookeeper.jmx.log4j.disable=true",
               "-Dzookeeper.4lw.commands.whitelist=*", "-Xmx256m")

    def start_server(self, mode, name, lines, options=()):
        data = self.directory / f"{name}-{mode.name}"
        data.mkdir()
        lines = [*lines, f"dataDir={data}", "tickTime=1000", "initLimit=40", "syncLimit=20"]
        if name.isdigit():
            (data / "myid").write_text(name, encoding="ascii")
        config = data / "zoo.cfg"
        config.write_text("\n".join(lines), encoding="ascii")
        return self.start("server-" + name, library_java(
            "org.apache.zookeeper.server.quorum.QuorumPeerMain", config,
            options=[*self.OPTIONS, *options]), mode.server)

    def use(self, mode, what, hosts, *arguments, options=()):
        return self.start("client-" + what, library_java("ZooKeeperUse", what, hosts, *arguments,
                                                         options=options), mode.client)

    @staticmethod
    def state(port):
        """Returns what a server says it is: leader, follower, standalone, or None."""
        try:
            with socket.create_connection(("127.0.0.1", port), 10) as stream:
                stream.sendall(b"srvr")
                text = b"".join(iter(lambda: stream.recv(4096), b"")).decode()
        except OSError:
            return None
        match = re.search(r"^Mode: (\w+)$", text, re.MULTILINE)
        return match and match.group(1)

    def wait_states(self, ports, expected):
        deadline = time.monotonic() + TIME_LIMIT
        while sorted(str(self.state(port)) for port in ports) != expected:
            if time.monotonic() > deadline:
                self.fail(f"ZooKeeper: {[self.state(port) for port in ports]} instead of {expected}")
            time.sleep(0.1)

    def check_standalone(self, work, server_options=(), client_options=()):
        expected, runs = None, {}
        for mode in MODES:
            with self.part(mode=mode.name):
                port = sidestep_harness.free_port()
                server = self.start_server(mode, "standalone", [
                    f"clientPort={port}", "clientPortAddress=127.0.0.1"], server_options)
                server.wait_listening(port, 60)
                self.wait_states([port], ["standalone"])
                client = self.use(mode, "check", f"127.0.0.1:{port}", options=client_options)
                client.wait(TIME_LIMIT)
                server.stop(60)
                if mode is KERNEL:
                    expected = seen(client)
                    self.assertTrue(expected)
                self.assertEqual(seen(client), expected)
                if mode is BOTH:
                    self.check_over_engine(server, client)
                    if sidestep_harness.AT_ONCE:
                        self.assertGreaterEqual(server.engine_share(), 0.3)
                runs[mode] = server, client
        self.record_rates("ZooKeeper", work, "creates/s", runs)

    def test_standalone(self):
        self.check_standalone("standalone, asynchronous creates")

    def test_standalone_over_netty(self):
        self.check_standalone(
            "standalone over Netty, asynchronous creates",
            ["-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"],
            ["-Dzookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty"])

    def test_an_ensemble_that_loses_its_leader(self):
        expected = None
        for mode in MODES:
            with self.part(mode=mode.name):
                found = self.run_ensemble(mode, 1500)
                if mode is KERNEL:
                    expected = found
                    self.assertEqual(len(set(found)), 1)
                    self.assertIn("read 1500 ", found[0])
                self.assertEqual(found, expected)

    def run_ensemble(self, mode, count):
        """Returns what each of the three servers holds after the leader has been killed and restarted."""
        ports = [sidestep_harness.free_port() for _ in range(9)]
        peers = [f"server.{i + 1}=127.0.0.1:{ports[i]}:{ports[3 + i]}" for i in range(3)]
        clients = ports[6:]
        lines = [[*peers, f"clientPort={port}", "clientPortAddress=127.0.0.1"] for port in clients]
        servers = [self.start_server(mode, str(i + 1), lines[i]) for i in range(3)]
        self.wait_states(clients, ["follower", "follower", "leader"])
        writer = self.use(mode, "write", ",".join(f"127.0.0.1:{port}" for port in clients), count)
        writer.wait_output(r"^acknowledged 300$", TIME_LIMIT)
        leader = next(i for i in range(3) if self.state(clients[i]) == "leader")
        servers[leader].kill()
        self.wait_states(clients, ["None", "follower", "leader"])
        writer.wait(TIME_LIMIT)
        # The old leader comes back and learns what it has missed.
        again = self.start("server-again", servers[leader].argv, mode.server)
        self.wait_states(clients, ["follower", "follower", "leader"])
        readers = [self.use(mode, "read", f"127.0.0.1:{port}") for port in clients]
        for reader in readers:
            reader.wait(TIME_LIMIT)
        servers[leader] = again
        for server in servers:
            server.stop(60)
        if mode is BOTH:
            self.check_over_engine(writer, *servers)
        return [seen(reader)[0] for reader in readers]


if __name__ == "__main__":
    sidestep_harness.main()
