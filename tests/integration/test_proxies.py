#!/usr/bin/env python3
"""nginx and HAProxy serve, forward, reload, and end as they do on the kernel."""

import gzip
import hashlib
import random
import re
import signal
import socket
import time

import sidestep_harness
from sidestep_harness import BOTH, KERNEL, SidestepTestCase

MODES = (KERNEL, BOTH)
KB = 1 << 10
MB = 1 << 20
# The engine's share of the bytes of a server under load. Streams move within milliseconds, but on a machine
# that does other work, many connects and the first round trips take long.
SHARE = 0.5
TIMEOUT = 120
# The last size exceeds what the kernel holds for a connection (tcp_rmem and tcp_wmem are 36 MB), so its
# sender is still sending when the stream can leave the kernel.
FILES = {"small": KB, "large": 10 * MB, "huge": 64 * MB}
MEASURED = ("small", "large")

NGINX = """
daemon off; user root; worker_processes 2; error_log {dir}/error.log; pid {dir}/pid;
events {{ worker_connections 512; }}
http {{
    access_log off; default_type application/octet-stream; keepalive_requests 100000;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi; client_max_body_size 100m;
    types {{ text/plain txt; }}
    gzip_types text/plain;
    {http}
    server {{ listen 127.0.0.1:{port} backlog=1024; {server} }}
}}
"""
FILES_SERVER = "root {files}; dav_methods PUT; location ~ txt$ {{ gzip on; }}"
PROXY = """
    location / {{
        proxy_pass http://upstream; proxy_http_version 1.1; proxy_set_header Connection "";
    }}
"""

HAPROXY = """
global
    stats socket {dir}/stats
    nbthread 2
defaults
    timeout connect 30s
    timeout client 60s
    timeout server 60s
    timeout check 5s
    default-server inter 200ms fall 2 rise 1
    {defaults}
frontend front
    bind 127.0.0.1:{port}
    default_backend back
backend back
    balance roundrobin
    retries 5
    option redispatch
    option httpchk GET /small
"""


class ProxyTestCase(SidestepTestCase):
    def setUp(self):
        super().setUp()
        self.files = self.directory / "files"
        self.files.mkdir()
        noise = random.Random(3)
        for name, size in FILES.items():
            (self.files / name).write_bytes(noise.randbytes(size))
        (self.files / "text.txt").write_text("".join(f"line {i}\n" for i in range(300000)))
        self.digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                        for path in self.files.iterdir()}

    def start_nginx(self, mode, server=FILES_SERVER, http="", name="nginx"):
        port = sidestep_harness.free_port()
        directory = self.directory / f"{mode.name}-{name}-{port}"
        directory.mkdir()
        config = directory / "nginx.conf"
        config.write_text(NGINX.format(dir=directory, port=port, http=http,
                                       server=server.format(files=self.files)))
        program = self.start(name, ["nginx", "-p", directory, "-c", config, "-e", directory / "error.log"],
                             mode.server)
        program.wait_listening(port, 60)
        return program, port

    def start_nginx_proxy(self, mode, upstream):
        return self.start_nginx(mode, PROXY,
                                f"upstream upstream {{ server 127.0.0.1:{upstream}; keepalive 8; }}",
                                name="nginx-proxy")

    def run_program(self, name, argv, mode):
        program = self.start(name, argv, mode.client)
        program.wait(TIMEOUT)
        return program

    def curl_argv(self, *arguments):
        return ["curl", "--silent", "--show-error", "--fail", "--max-time", TIMEOUT, *arguments]

    def curl(self, mode, *arguments):
        return self.run_program("curl", self.curl_argv(*arguments), mode)

    def start_download(self, mode, port, name, count, *options):
        """Starts curl, which gets file after file over one connection."""
        return self.start("curl", self.curl_argv(f"http://127.0.0.1:{port}/{name}?[1-{count}]", *options),
                          mode.client)

    def check_download(self, program, name, count):
        program.wait(TIMEOUT)
        with open(program.directory / "stdout", "rb") as output:
            for _ in range(count):
                part = output.read((self.files / name).stat().st_size)
                self.assertEqual(hashlib.sha256(part).hexdigest(), self.digests[name], name)
            self.assertEqual(output.read(), b"")

    def download(self, mode, port, name, count, *options):
        program = self.start_download(mode, port, name, count, *options)
        self.check_download(program, name, count)
        return program

    def wait_first_bytes(self, download):
        deadline = time.monotonic() + TIMEOUT
        while (download.directory / "stdout").stat().st_size == 0:
            if time.monotonic() > deadline:
                self.fail("the download does not begin")
            time.sleep(0.01)

    def wrk(self, mode, port, name, *options):
        """Runs wrk and returns it with its requests per second; no request may fail."""
        program = self.run_program("wrk", ["wrk", "-t", 2, "-c", 20, "-d", "2s", "--timeout", "60s", *options,
                                           f"http://127.0.0.1:{port}/{name}"], mode)
        self.assertNotRegex(program.stdout, "Socket errors|Non-2xx")
        return program, float(re.search(r"Requests/sec: +([0-9.]+)", program.stdout).group(1))

    def check_carried(self, *programs, share=SHARE):
        for program in programs if sidestep_harness.AT_ONCE else ():
            self.assert_over_engine(program)
            for direction in ("tx", "rx"):
                self.assertGreater(program.engine_bytes(direction), 0, f"{program.name}, {direction}")
            self.assertGreater(program.engine_share(), share, f"{program.name}: the engine's share")


class Nginx(ProxyTestCase):
    def test_files(self):
        for sendfile in ("on", "off"):
            for mode in MODES:
                with self.part(mode=mode.name, sendfile=sendfile):
                    server, port = self.start_nginx(mode, http=f"sendfile {sendfile};")
                    self.download(mode, port, "small", 300)
                    client = self.download(mode, port, "large", 10)
                    ranges = self.curl(mode, "-r", "5000000-9999999", f"http://127.0.0.1:{port}/large")
                    part = (ranges.directory / "stdout").read_bytes()
                    self.assertEqual(part, (self.files / "large").read_bytes()[5000000:10000000])
                    server.stop()
                    if mode is BOTH:
                        self.check_carried(server, client)

    def test_load(self):
        rates = {}
        for mode in MODES:
            with self.part(mode=mode.name):
                server, port = self.start_nginx(mode, http="sendfile on;")
                for name in MEASURED:
                    client, rates[name, mode] = self.wrk(mode, port, name)
                # Most of these streams are too short to move.
                self.wrk(mode, port, "small", "-H", "Connection: close")
                server.stop()
                if mode is BOTH:
                    self.check_carried(server)
                    for name in MEASURED:
                        self.record("nginx", f"wrk, 20 connections, {FILES[name] // KB} KiB", server.engine_share(),
                                    "requests/s", rates[name, KERNEL], rates[name, BOTH])

    def test_reverse_proxy(self):
        rates = {}
        for mode in MODES:
            with self.part(mode=mode.name):
                upstream, upstream_port = self.start_nginx(mode)
                server, port = self.start_nginx_proxy(mode, upstream_port)
                url = f"http://127.0.0.1:{port}"
                self.download(mode, port, "small", 300)
                self.download(mode, port, "large", 10)
                # nginx compresses this while sending it, and therefore sends chunks.
                packed = self.curl(mode, "--include", "-H", "Accept-Encoding: gzip", f"{url}/text.txt")
                header, _, body = (packed.directory / "stdout").read_bytes().partition(b"\r\n\r\n")
                self.assertIn(b"Transfer-Encoding: chunked", header)
                self.assertEqual(gzip.decompress(body), (self.files / "text.txt").read_bytes())
                # Uploads, with a length and in chunks.
                large = self.files / "large"
                for encoding in ("Expect:", "Transfer-Encoding: chunked"):
                    copy = self.files / "copy"
                    self.curl(mode, "-H", encoding, "-T", large, f"{url}/copy")
                    self.assertEqual(copy.read_bytes(), large.read_bytes())
                    copy.unlink()
                _, rates[mode] = self.wrk(mode, port, "small")
                server.stop()
                upstream.stop()
                if mode is BOTH:
                    self.check_carried(server, upstream)
                    self.record("nginx, reverse proxy", "wrk, 20 connections, 1 KiB", server.engine_share(),
                                "requests/s", rates[KERNEL], rates[BOTH])

    def test_reload(self):
        # curl asks again if the server has closed the connection between two requests; an answer that breaks
        # off is an error. wrk's connections close after each request and have no such moment.
        downloads = (("large", 8, "--limit-rate", "30m"), ("small", 1500, "--rate", "500/s"))
        for mode in MODES:
            with self.part(mode=mode.name):
                server, port = self.start_nginx(mode)
                started = [self.start_download(mode, port, *download) for download in downloads]
                load = self.start("wrk", ["wrk", "-t", 1, "-c", 8, "-d", "3s", "--timeout", "60s", "-H",
                                          "Connection: close", f"http://127.0.0.1:{port}/small"], mode.client)
                for _ in range(3):
                    time.sleep(0.6)
                    server.process.send_signal(signal.SIGHUP)
                load.wait(TIMEOUT)
                self.assertNotRegex(load.stdout, "Socket errors|Non-2xx")
                for program, (name, count, *_) in zip(started, downloads, strict=True):
                    self.check_download(program, name, count)
                server.stop()
                if mode is BOTH:
                    self.check_carried(server, share=0)

    def test_graceful_quit(self):
        for mode in MODES:
            with self.part(mode=mode.name):
                server, port = self.start_nginx(mode)
                download = self.start_download(mode, port, "huge", 1, "--limit-rate", "32m")
                self.wait_first_bytes(download)
                server.process.send_signal(signal.SIGQUIT)
                self.check_download(download, "huge", 1)
                server.wait(60)
                if mode is BOTH and sidestep_harness.AT_ONCE:
                    # Only the answer: the single request has arrived before anybody reads.
                    self.assertGreater(server.engine_bytes("tx"), 0)
                    self.assertGreater(download.engine_bytes("rx"), 0)


class HaProxy(ProxyTestCase):
    def start_haproxy(self, mode, defaults, servers):
        port = sidestep_harness.free_port()
        directory = self.directory / f"{mode.name}-haproxy-{port}"
        directory.mkdir()
        config = directory / "haproxy.cfg"
        config.write_text(HAPROXY.format(dir=directory, port=port, defaults=defaults) + "".join(
            f"    server s{i} 127.0.0.1:{server} check\n" for i, server in enumerate(servers)))
        program = self.start("haproxy", ["haproxy", "-db", "-f", config], mode.server)
        program.wait_listening(port, 60)
        return program, port, directory / "stats"

    @staticmethod
    def states(path):
        """Returns HAProxy's view of the states of its servers."""
        with socket.socket(socket.AF_UNIX) as stats:
            stats.connect(str(path))
            stats.sendall(b"show stat\n")
            with stats.makefile() as answer:
                rows = [line.split(",") for line in answer if line.startswith("back,s")]
        return [row[17].partition(" ")[0] for row in rows]

    def wait_states(self, path, wanted):
        deadline = time.monotonic() + TIMEOUT
        while (found := self.states(path)) != wanted:
            if time.monotonic() > deadline:
                self.fail(f"HAProxy says {found} of its servers, not {wanted}")
            time.sleep(0.05)

    def check(self, work, defaults, share):
        rates = {}
        for mode in MODES:
            with self.part(mode=mode.name):
                first, first_port = self.start_nginx(mode, name="first")
                second, second_port = self.start_nginx(mode, name="second")
                server, port, stats = self.start_haproxy(mode, defaults, [first_port, second_port])
                self.wait_states(stats, ["UP", "UP"])
                self.download(mode, port, "small", 300)
                for _ in range(2):  # in TCP mode, each connection has one server
                    self.download(mode, port, "large", 5)
                self.curl(mode, "-T", self.files / "large", f"http://127.0.0.1:{port}/copy")
                self.assertEqual((self.files / "copy").read_bytes(), (self.files / "large").read_bytes())
                _, rates[mode] = self.wrk(mode, port, "small")
                # The health checks notice that a server has ended.
                first.stop()
                self.wait_states(stats, ["DOWN", "UP"])
                self.download(mode, port, "small", 20)
                # A soft stop lets transfers in progress finish.
                download = self.start_download(mode, port, "huge", 1, "--limit-rate", "32m")
                self.wait_first_bytes(download)
                server.process.send_signal(signal.SIGUSR1)
                self.check_download(download, "huge", 1)
                ended = server.wait(60, code=None)
                second.stop()
                if mode is KERNEL:
                    expected = ended
                self.assertEqual(ended, expected)
                if mode is BOTH:
                    if share is None:
                        self.assertIn("splice", server.stats()["kernel_reasons"])
                    else:
                        self.check_carried(server, first, second, share=share)
                    self.record("haproxy", f"{work}, wrk, 20 connections, 1 KiB", server.engine_share(),
                                "requests/s", rates[KERNEL], rates[BOTH])

    def test_http(self):
        self.check("HTTP", "mode http", SHARE)

    def test_tcp(self):
        self.check("TCP", "mode tcp", SHARE)

    def test_tcp_with_splice(self):
        # HAProxy splices all answers, or only long ones (auto); a stream that it splices goes to the kernel.
        self.check("TCP, splice-response", "mode tcp\n    option splice-response", None)
        self.check("TCP, splice-auto", "mode tcp\n    option splice-auto", 0)


if __name__ == "__main__":
    sidestep_harness.main()
