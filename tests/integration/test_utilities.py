#!/usr/bin/env python3
"""Node.js, curl, OpenSSH, and rsync do what they do on the kernel."""

import functools
import hashlib
import json
import pathlib
import random
import shutil
import subprocess
import time

import sidestep_harness
from sidestep_harness import BOTH, KERNEL, ROOT, SidestepTestCase, free_port

PROGRAMS = ROOT / "tests" / "programs"
MB = 1 << 20
MODES = (KERNEL, BOTH)
PATIENCE = 60  # seconds for anything that takes a few seconds
FLOOR = 0.3  # of the bytes of long streams, which move within milliseconds, or later on a busy machine


@functools.cache
def noise(seed, size):
    return random.Random(seed).randbytes(size)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Utilities(SidestepTestCase):
    """Runs an exchange on the kernel and then under Sidestep; both must have the same result."""

    def check(self, exchange, program, work, floor=None, forks=False):
        """`exchange(mode)` returns a server, its clients, what was seen, and the seconds that it took.

        `program` and `work` are recorded. Some bytes of both sides have to go over the engine; `floor` is the
        least share of the server's bytes. Short streams may end before they have moved. `forks`: the server
        forks with its connections open, which leaves them to the kernel. Its children may write no stats, so
        the clients' stats are used.
        """
        expected = kernel = None
        for mode in MODES:
            with self.part(mode=mode.name):
                server, clients, seen, seconds = exchange(mode)
                if mode is KERNEL:
                    expected, kernel = seen, round(seconds, 3)
                self.assertEqual(seen, expected)
                if mode is BOTH:
                    if not sidestep_harness.AT_ONCE:
                        floor = None
                    elif forks:
                        self.assertGreater(server.stats()["kernel_reasons"]["fork"], 0)
                    else:
                        self.assert_used_engine(server)
                        self.assert_used_engine(*clients)
                    if floor is not None:
                        self.assertGreater(server.engine_share(), floor)
                    share = (clients[0] if forks else server).engine_share()
                    self.record(program, work, share, "s", kernel, round(seconds, 3))

    def assert_used_engine(self, *programs):
        carried = sum(p.engine_bytes(direction) for p in programs for direction in ("tx", "rx"))
        self.assertGreater(carried, 0, f"bytes over the engine: {[p.name for p in programs]}")

    def run_client(self, mode, name, *argv, code=0, stdin=None):
        client = self.start(name, argv, mode.client, stdin=stdin)
        client.wait(PATIENCE, code)
        return client

    def start_node(self, mode, *options):
        server = self.start("node-server", ["node", PROGRAMS / "node_server.js", *options], mode.server)
        server.http = int(server.wait_output(r"^http (\d+)$", PATIENCE).group(1))
        server.net = int(server.wait_output(r"^net (\d+)$", PATIENCE).group(1))
        return server

    def digests(self, directory):
        return {str(p.relative_to(directory)): (p.stat().st_mode, p.stat().st_mtime_ns // 10**9,
                                                sha256(p.read_bytes()) if p.is_file() else None)
                for p in sorted(directory.rglob("*"))}


class Node(Utilities):
    def run_work(self, mode, work, *options):
        server = self.start_node(mode, *options)
        client, _ = (self.run_client(mode, f"node-{name}", "node", PROGRAMS / "node_client.js", name,
                                     server.http, server.net) for name in (work, "end"))
        server.wait(PATIENCE)
        self.assertEqual(server.stderr, "")
        seen = json.loads(client.stdout)
        return server, [client], seen["result"], seen["seconds"]

    def test_many_requests_over_few_connections(self):
        self.check(lambda mode: self.run_work(mode, "keepalive"), "Node.js 20",
                   "HTTP, keep-alive, 2 x 400 requests", floor=FLOOR)

    def test_streams_that_wait_for_a_slow_reader(self):
        self.check(lambda mode: self.run_work(mode, "backpressure"), "Node.js 20",
                   "HTTP, slow readers, 40 MiB up, 40 down, 10 both ways", floor=FLOOR)

    def test_many_connections(self):
        self.check(lambda mode: self.run_work(mode, "connections"), "Node.js 20",
                   "HTTP, 200 connections, 1000 requests")

    def test_an_answer_after_the_half_close(self):
        self.check(lambda mode: self.run_work(mode, "half"), "Node.js 20",
                   "net, half close, 16 MB there and back")

    def test_files_where_connections_were(self):
        # libuv closes its sockets with syscall().
        self.check(lambda mode: self.run_work(mode, "files"), "Node.js 20", "HTTP, and files between")

    def test_a_server_that_starts_programs(self):
        # Each start brings the open streams down for good, usually before they have moved.
        self.check(lambda mode: self.run_work(mode, "spawn"), "Node.js 20",
                   "HTTP, a child for each of 5 requests", forks=True)

    def test_workers_that_another_process_accepts_for(self):
        # The primary process passes every connection to a worker, which leaves the connection to the kernel.
        expected = None
        for mode in MODES:
            with self.part(mode=mode.name):
                *_, seen, _ = self.run_work(mode, "connections", "--workers", "2")
                if mode is KERNEL:
                    expected = seen
                self.assertEqual(seen, expected)


class Curl(Utilities):
    def run_curl(self, mode, *calls, tls=False, options=()):
        """Runs curl once for each call: its arguments, with {} in place of the server."""
        server = self.start_node(mode, *options)
        where = f"http{'s' * tls}://127.0.0.1:{server.http}"
        trust = ["--cacert", self.directory / "cert.pem"] if tls else []
        start = time.monotonic()
        clients = [self.run_client(mode, "curl", "curl", "--silent", "--show-error", "--fail", *trust,
                                   *(str(a).replace("{}", where) for a in call)) for call in calls]
        seconds = time.monotonic() - start
        self.run_client(mode, "curl-end", "curl", "--silent", "--fail", *trust, f"{where}/end")
        server.wait(PATIENCE)
        seen = [(sha256((c.directory / "stdout").read_bytes()), c.stderr) for c in clients]
        return server, clients, seen, seconds

    def test_download(self):
        self.check(lambda mode: self.run_curl(mode, [f"{{}}/bytes/{50 * MB}"]), "curl",
                   "download 50 MiB from Node.js", floor=FLOOR)

    def test_upload(self):
        path = self.directory / "upload"
        path.write_bytes(noise(1, 30 * MB))
        calls = (["-T", path, "{}/upper"], ["--data-binary", f"@{path}", "{}/digest"],
                 ["-F", f"file=@{path}", "-H", "Content-Type: multipart/x; boundary=y", "-o", "/dev/null",
                  "{}/digest"])
        self.check(lambda mode: self.run_curl(mode, *calls), "curl", "PUT and POST, 90 MiB", floor=FLOOR)

    def test_many_requests(self):
        few = [f"{{}}/part/{1000 + i}" for i in range(50)]
        reuse = ["-w", "%{num_connects} %{http_code}\n"]
        calls = ([*reuse, *few],
                 [*reuse, "-r", "1000-700999", f"{{}}/part/{MB}"],
                 ["--limit-rate", "8M", f"{{}}/bytes/{16 * MB}"])
        self.check(lambda mode: self.run_curl(mode, *calls), "curl",
                   "keep-alive, a range, 16 MiB at 8 MiB/s", floor=FLOOR)

    def test_parallel_requests(self):
        files = [self.directory / f"parallel{i}" for i in range(20)]
        call = ["--parallel", "--parallel-max", "10"]
        for i, path in enumerate(files):
            call += [f"{{}}/bytes/{2 * MB + i}", "-o", str(path)]

        def exchange(mode):
            server, clients, _, seconds = self.run_curl(mode, call)
            seen = [sha256(path.read_bytes()) for path in files]
            for path in files:
                path.unlink()
            return server, clients, seen, seconds

        self.check(exchange, "curl", "--parallel, 20 x 2 MiB")

    def test_https(self):
        key, certificate = self.directory / "key.pem", self.directory / "cert.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out",
                        certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
                       check=True, capture_output=True)
        path = self.directory / "upload"
        path.write_bytes(noise(2, 5 * MB))
        calls = ([f"{{}}/bytes/{20 * MB}"], ["-T", path, "{}/upper"])
        self.check(lambda mode: self.run_curl(mode, *calls, tls=True,
                                              options=["--key", key, "--cert", certificate]),
                   "curl", "HTTPS, 20 MiB down, 5 MiB both ways", floor=FLOOR)


class Ssh(Utilities):
    """Runs as root over the loopback interface.

    sshd forks for each connection, whose stream is then left to the kernel. The streams that its children
    open for forwarding are the engine's.
    """

    def setUp(self):
        super().setUp()
        # sshd needs this folder, and we may create it only in a mount namespace of our own.
        self.privileges = pathlib.Path("/run/sshd")
        self.made = not self.privileges.exists()
        self.privileges.mkdir(mode=0o755, exist_ok=True)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.directory / name],
                           check=True)

    def tearDown(self):
        super().tearDown()
        if self.made:
            self.privileges.rmdir()

    def run_ssh(self, mode, session):
        port = free_port()
        config = self.directory / "sshd_config"
        config.write_text(f"""
Port {port}
ListenAddress 127.0.0.1
HostKey {self.directory}/host
PidFile {self.directory}/sshd.pid
AuthorizedKeysFile {self.directory}/user.pub
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
Subsystem sftp internal-sftp
""", encoding="ascii")
        server = self.start("sshd", ["/usr/sbin/sshd", "-D", "-e", "-f", config], mode.server)
        server.wait_listening(port, PATIENCE)
        common = ["-F", "none", "-i", self.directory / "user", "-o", "BatchMode=yes", "-o",
                  "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o",
                  "LogLevel=ERROR"]
        start = time.monotonic()
        clients, seen = session(mode, port, common)
        seconds = time.monotonic() - start
        server.process.terminate()
        server.wait(PATIENCE, code=None)
        return server, clients, seen, seconds

    def check_session(self, session, work):
        self.check(lambda mode: self.run_ssh(mode, session), "OpenSSH 9.2", work, forks=True)

    def test_commands(self):
        def session(mode, port, common):
            path = self.directory / "input"
            path.write_bytes(noise(3, 8 * MB))
            clients, seen = [], []
            for command, code in (("echo out; echo err >&2; exit 3", 3), ("cat", 0), ("kill -9 $$", 255),
                                  ("head -c 1000", 0), ("sha256sum; exit 5", 5)):
                with open(path, "rb") as stdin:
                    client = self.run_client(mode, "ssh", "ssh", *common, "-p", port, "root@127.0.0.1",
                                             command, code=code, stdin=stdin)
                clients.append(client)
                seen.append((sha256((client.directory / "stdout").read_bytes()), client.stderr))
            return clients, seen

        self.check_session(session, "commands, 8 MiB of input, 8 back")

    def test_files(self):
        there = self.directory / "there"
        there.write_bytes(noise(4, 20 * MB))

        def session(mode, port, common):
            copy, back = self.directory / f"copy-{mode.name}", self.directory / f"back-{mode.name}"
            clients = [self.run_client(mode, "scp", "scp", *legacy, *common, "-P", port, source, target)
                       for legacy in ([], ["-O"])
                       for source, target in ((there, f"root@127.0.0.1:{copy}"),
                                              (f"root@127.0.0.1:{copy}", back))]
            batch = self.directory / "batch"
            batch.write_text(f"put {there} {copy}2\nget {copy}2 {back}2\nls -l {copy}2\nrm {copy}2\n",
                             encoding="ascii")
            clients.append(self.run_client(mode, "sftp", "sftp", *common, "-P", port, "-b", batch,
                                           "root@127.0.0.1"))
            second = self.directory / f"back-{mode.name}2"
            seen = [path.read_bytes() == there.read_bytes() for path in (copy, back, second)]
            return clients, [*seen, (self.directory / f"copy-{mode.name}2").exists()]

        self.check_session(session, "scp and sftp, 6 x 20 MiB")

    def test_forwarded_port(self):
        def session(mode, port, common):
            web = self.start_node(mode)
            local = free_port()
            tunnel = self.start("ssh-tunnel", ["ssh", *common, "-N", "-L", f"{local}:127.0.0.1:{web.http}",
                                               "-p", port, "root@127.0.0.1"], mode.client)
            tunnel.wait_listening(local, PATIENCE)
            clients = [self.run_client(mode, "curl", "curl", "-sS", *call)
                       for call in ([f"http://127.0.0.1:{local}/bytes/{20 * MB}"],
                                    ["-T", __file__, f"http://127.0.0.1:{local}/upper"])]
            self.run_client(mode, "curl-end", "curl", "-sS", f"http://127.0.0.1:{web.http}/end")
            tunnel.process.terminate()
            tunnel.wait(PATIENCE, code=None)
            web.wait(PATIENCE)
            if mode is BOTH:
                self.assert_used_engine(web)
                self.assert_used_engine(*clients)
                self.assert_used_engine(tunnel)
            return clients, [sha256((c.directory / "stdout").read_bytes()) for c in clients]

        self.check_session(session, "20 MiB through a forwarded port")


class Rsync(Utilities):
    def tree(self):
        """Makes 300 files, 50 MiB in total, with sizes from nothing to 10 MiB."""
        sizes = random.Random(5)
        root = self.directory / "tree"
        for i in range(300):
            path = root / f"d{i % 7}" / f"e{i % 3}" / f"file {i}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(noise(i, 10 * MB if i < 3 else sizes.randrange(0, 140000)))
        return root

    def test_push_and_pull(self):
        root = self.tree()

        def exchange(mode):
            port = free_port()
            store, pulled = self.directory / f"store-{mode.name}", self.directory / f"pulled-{mode.name}"
            source = self.directory / f"source-{mode.name}"
            store.mkdir()
            shutil.copytree(root, source)  # including the times
            config = self.directory / "rsyncd.conf"
            config.write_text(f"use chroot = no\nuid = root\ngid = root\nread only = no\n"
                              f"pid file = {self.directory}/rsyncd-{mode.name}.pid\n"
                              f"[store]\npath = {store}\n", encoding="ascii")
            server = self.start("rsyncd", ["rsync", "--daemon", "--no-detach", f"--config={config}",
                                           f"--port={port}", "--address=127.0.0.1"], mode.server)
            server.wait_listening(port, PATIENCE)
            there = f"rsync://127.0.0.1:{port}/store/"
            clients, seen = [], []

            def run(*argv):
                client = self.run_client(mode, "rsync", "rsync", "-a", "--stats", *argv)
                clients.append(client)
                numbers = [line for line in client.stdout.splitlines()
                           if line.startswith(("Number of", "Total file size", "Literal", "Matched"))]
                seen.append((numbers, client.stderr))

            start = time.monotonic()
            run(f"{source}/", there)
            run("--checksum", there, f"{pulled}/")
            seen.append(self.digests(store) == self.digests(source) == self.digests(pulled))
            # One file is new, one has changed, one is gone.
            (source / "new").write_bytes(noise(6, MB))
            big = source / "d0" / "e0" / "file 0"
            big.write_bytes(big.read_bytes()[:5 * MB] + b"changed" + big.read_bytes()[5 * MB:])
            shutil.rmtree(source / "d3")
            run("--delete", "--no-whole-file", f"{source}/", there)
            run("--delete", "--checksum", there, f"{pulled}/")
            run("--checksum", f"{source}/", there)
            seconds = time.monotonic() - start
            seen.append(self.digests(store) == self.digests(source) == self.digests(pulled))
            server.process.terminate()
            server.wait(PATIENCE, code=None)
            return server, clients, seen, seconds

        # The daemon forks for each connection, and on each end the receiver forks once more.
        self.check(exchange, "rsync 3.2", "daemon: push and pull 50 MiB, then what has changed",
                   forks=True)


if __name__ == "__main__":
    sidestep_harness.main()
