#!/usr/bin/env python3
"""Redis, memcached, and PostgreSQL, with their own clients, do what they do on the kernel."""

import csv
import hashlib
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
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


class ServerTestCase(SidestepTestCase):
    def run_program(self, name, argv, mode, code=0, stdin=None, **options):
        """Runs a client from start to end."""
        program = self.start(name, argv, mode.client, stdin=stdin, **options)
        program.wait(TIMEOUT, code)
        return program

    def wait_until(self, condition, what):
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"not within {TIMEOUT} s: {what}")
            time.sleep(0.05)

    def check_carried(self, *programs, share=SHARE):
        for program in programs if sidestep_harness.AT_ONCE else ():
            self.assert_over_engine(program)
            for direction in ("tx", "rx"):
                self.assertGreater(program.engine_bytes(direction), 0, f"{program.name}, {direction}")
            self.assertGreater(program.engine_share(), share, f"{program.name}: the engine's share")


class Redis(ServerTestCase):
    def start_server(self, mode, *options, name="redis-server"):
        """Starts a server that knows DEBUG DIGEST and takes no snapshots of its own accord."""
        directory = self.directory / f"{mode.name}-{name}"
        directory.mkdir(exist_ok=True)
        port = sidestep_harness.free_port()
        server = self.start(name, ["redis-server", "--port", port, "--bind", "127.0.0.1", "--dir",
                                   directory, "--save", "", "--enable-debug-command", "yes",
                                   *options], mode.server)
        server.wait_listening(port, 60)
        return server, port

    def cli(self, mode, port, *command, stdin=None):
        """Returns the lines of answers that redis-cli prints."""
        return self.run_program("redis-cli", ["redis-cli", "-p", port, *command], mode,
                                stdin=stdin).stdout.splitlines()

    def info(self, mode, port, field):
        lines = self.cli(mode, port, "INFO", "everything")
        return next(line.partition(":")[2] for line in lines if line.startswith(field + ":"))

    def benchmark(self, mode, port, *options):
        """Runs redis-benchmark; returns the client, and its requests per second by test."""
        program = self.run_program("redis-benchmark", ["redis-benchmark", "-p", port, "--csv",
                                                       *options], mode)
        rows = list(csv.DictReader(program.stdout.splitlines()))
        return program, {row["test"]: float(row["rps"]) for row in rows}

    def fill(self, mode, port):
        """Sends strings of 1 byte to 4 MB, lists, and hashes in one pipeline, and checks the answers.

        Repeats that, because the first megabytes are in the kernel's buffers before the stream can move.
        """
        noise = random.Random(1)
        commands = [(b"SET", f"string:{i}".encode(), noise.randbytes(size)) for i, size in
                    enumerate([1, 100, 16 * KB - 1, 65 * KB, MB, 4 * MB] + [300] * 2000)]
        commands += [(b"RPUSH", b"list", noise.randbytes(50)) for _ in range(2000)]
        commands += [(b"HSET", b"hash", b"%d" % i, noise.randbytes(50)) for i in range(2000)]
        commands *= 20
        path = self.directory / "commands"
        with open(path, "wb") as file:
            for command in commands:
                file.write(b"*%d\r\n" % len(command))
                for word in command:
                    file.write(b"$%d\r\n%b\r\n" % (len(word), word))
        with open(path, "rb") as file:
            self.assertEqual(self.cli(mode, port, "--pipe", stdin=file)[-1],
                             f"errors: 0, replies: {len(commands)}")

    def contents(self, mode, port):
        return (self.cli(mode, port, "DEBUG", "DIGEST"), self.cli(mode, port, "DBSIZE"),
                self.cli(mode, port, "LLEN", "list"), self.cli(mode, port, "STRLEN", "string:5"))

    # The options of the server, and those of the benchmark.
    WORK = {
        "50 clients, SET, GET": ([], ["-n", 50000, "-t", "set,get"]),
        "50 clients, 16 in a pipeline": ([], ["-n", 200000, "-P", 16,
                                              "-t", "incr,rpush,hset,lrange_100,mset"]),
        "50 clients, SET, GET of 64 KB": ([], ["-n", 3000, "-d", 64 * KB, "-t", "set,get"]),
        "50 clients, SET, GET, I/O threads": (["--io-threads", 2, "--io-threads-do-reads", "yes"],
                                              ["-n", 15000, "-P", 4, "-t", "set,get"]),
    }

    def test_load(self):
        for work, (server_options, options) in self.WORK.items():
            rates = {}
            for mode in MODES:
                with self.part(mode=mode.name, work=work):
                    server, port = self.start_server(mode, *server_options)
                    client, tests = self.benchmark(mode, port, *options)
                    # What the requests leave behind: counters, lengths, sizes.
                    seen = [sorted(tests)]
                    for command in ("GET counter:__rand_int__", "LLEN mylist", "HLEN myhash",
                                    "STRLEN key:__rand_int__", "DEBUG DIGEST"):
                        seen.append(self.cli(mode, port, *command.split()))
                    server.stop()
                    rates[mode] = sum(tests.values()) / len(tests)
                    if mode is KERNEL:
                        expected = seen
                    self.assertEqual(seen, expected)
                    if mode is BOTH:
                        self.check_carried(server, client)
                        self.record("redis-server", f"redis-benchmark, {work}", server.engine_share(),
                                    "requests/s", rates[KERNEL], rates[BOTH])

    def test_values(self):
        for mode in MODES:
            with self.part(mode=mode.name):
                server, port = self.start_server(mode)
                self.fill(mode, port)
                seen = self.contents(mode, port)
                for i in range(6):
                    value = self.run_program("redis-cli", ["redis-cli", "-p", port, "--raw", "GET",
                                                           f"string:{i}"], mode)
                    seen += (hashlib.sha256((value.directory / "stdout").read_bytes()).hexdigest(),)
                server.stop()
                if mode is KERNEL:
                    expected = seen
                self.assertEqual(seen, expected)
                if mode is BOTH:
                    self.check_carried(server)

    def test_replication(self):
        # The full synchronization forks, which leaves the replica's stream on the kernel. The next
        # synchronization begins where that one ended.
        for mode in MODES:
            with self.part(mode=mode.name):
                master, port = self.start_server(mode, "--repl-diskless-sync-delay", 0, name="master")
                self.fill(mode, port)
                replica, replica_port = self.start_server(mode, "--replicaof", f"127.0.0.1 {port}",
                                                          name="replica")
                self.wait_until(lambda: self.info(mode, replica_port, "master_link_status") == "up",
                                "the replica is in step")
                self.benchmark(mode, port, "-n", 10000, "-P", 4, "-t", "incr,lpush,set")
                self.assertEqual(self.cli(mode, port, "CLIENT", "KILL", "TYPE", "replica"), ["1"])
                self.wait_until(lambda: self.info(mode, port, "sync_partial_ok") == "1",
                                "the replica is back")
                self.benchmark(mode, port, "-n", 20000, "-P", 4, "-t", "incr,lpush,set")
                self.assertEqual(self.cli(mode, port, "INCR", "last"), ["1"])
                self.wait_until(lambda: self.cli(mode, replica_port, "GET", "last") == ["1"],
                                "the replica has the last command")
                seen = self.contents(mode, port)
                self.assertEqual(self.contents(mode, replica_port), seen)
                self.assertEqual(self.info(mode, port, "sync_full"), "1")
                replica.stop()
                master.stop()
                if mode is KERNEL:
                    expected = seen
                self.assertEqual(seen, expected)
                if mode is BOTH:
                    self.check_carried(master, share=0)

    def test_publishing(self):
        messages = [f"message {i} {'x' * (i % 200)}" for i in range(3000)]
        path = self.directory / "publish"
        path.write_text("".join(f'PUBLISH channel "{m}"\n' for m in messages), encoding="ascii")
        for mode in MODES:
            with self.part(mode=mode.name):
                server, port = self.start_server(mode)
                readers = [self.start("subscriber", ["redis-cli", "-p", port, "SUBSCRIBE", "channel"],
                                      mode.client) for _ in range(5)]
                for reader in readers:
                    reader.wait_output("^1$")
                with open(path, encoding="ascii") as commands:
                    self.assertEqual(self.cli(mode, port, stdin=commands), ["5"] * len(messages))
                for reader in readers:
                    reader.wait_output("^" + messages[-1] + "$", 60)
                self.assertEqual(self.cli(mode, port, "CLIENT", "KILL", "TYPE", "pubsub"), ["5"])
                ends = [reader.wait(60, code=None) for reader in readers]
                seen = [reader.stdout.splitlines() for reader in readers]
                self.assertEqual([lines[5::3] for lines in seen], [messages] * 5)
                server.stop()
                if mode is KERNEL:
                    expected = (seen, ends)
                self.assertEqual((seen, ends), expected)
                if mode is BOTH:
                    self.check_carried(server, share=0)
                    for reader in readers:
                        self.assertGreater(reader.engine_bytes("rx"), 0)

    def test_snapshots_under_load(self):
        # Each snapshot forks while all streams of the clients are open.
        for mode in MODES:
            with self.part(mode=mode.name):
                server, port = self.start_server(mode)
                self.fill(mode, port)
                loads = [self.start("redis-benchmark", ["redis-benchmark", "-p", port, "--csv", "-c", 10,
                                                        "-n", 100000, "-t", test], mode.client)
                         for test in ("incr", "rpush")]
                saves = 0
                while saves < 3 or any(load.running for load in loads):
                    self.assertEqual(self.cli(mode, port, "BGSAVE"), ["Background saving started"])
                    self.wait_until(lambda: self.info(mode, port, "rdb_bgsave_in_progress") == "0",
                                    "the snapshot has been written")
                    self.assertEqual(self.info(mode, port, "rdb_last_bgsave_status"), "ok")
                    saves += 1
                for load in loads:
                    load.wait(TIMEOUT)
                self.assertEqual(self.cli(mode, port, "GET", "counter:__rand_int__"), ["100000"])
                self.assertEqual(self.cli(mode, port, "LLEN", "mylist"), ["100000"])
                self.assertEqual(self.cli(mode, port, "SAVE"), ["OK"])
                seen = self.contents(mode, port)
                server.stop()
                again, port = self.start_server(mode)
                # The server listens, and computes digests, while it still loads.
                self.wait_until(lambda: self.info(mode, port, "loading") == "0", "the snapshot is loaded")
                self.assertEqual(self.contents(mode, port), seen)
                again.stop()
                if mode is KERNEL:
                    expected = seen
                self.assertEqual(seen, expected)
                if mode is BOTH:
                    self.check_carried(server, share=0)


class Memcached(ServerTestCase):
    def start_server(self, mode):
        port = sidestep_harness.free_port()
        server = self.start("memcached", ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", port,
                                          "-U", "0", "-t", "4", "-m", "2048", "-I", "2m"], mode.server)
        server.wait_listening(port, 60)
        return server, port

    def test_files(self):
        # memccp uses the file name as the key.
        noise = random.Random(2)
        files = []
        for size in (1, 100, 10 * KB, 300 * KB, MB):
            files.append(self.directory / f"value{size}")
            files[-1].write_bytes(noise.randbytes(size))
        for mode in MODES:
            with self.part(mode=mode.name):
                server, port = self.start_server(mode)
                servers = f"--servers=127.0.0.1:{port}"
                writer = self.run_program("memccp", ["memccp", servers, *files], mode)
                for file in files:
                    copy = self.directory / "copy"
                    for _ in range(3):
                        self.run_program("memccat", ["memccat", servers, f"--file={copy}", file.name],
                                         mode)
                        self.assertEqual(copy.read_bytes(), file.read_bytes(), file.name)
                self.run_program("memcrm", ["memcrm", servers, files[0].name], mode)
                gone = self.run_program("memccat", ["memccat", servers, files[0].name], mode, None)
                stats = self.run_program("memcstat", ["memcstat", servers], mode).stdout
                seen = (gone.process.returncode, gone.stderr,
                        re.findall(r"(curr_items|cmd_\w+|\w+_hits): (\d+)", stats))
                server.stop()
                if mode is KERNEL:
                    expected = seen
                self.assertEqual(seen, expected)
                if mode is BOTH:
                    self.check_carried(server, share=0)
                    self.check_carried(writer, share=0)

    def test_load(self):
        work = {"100 B": ["-X", 100], "8 KB": ["-X", 8 * KB]}
        for size, options in work.items():
            rates = {}
            for mode in MODES:
                with self.part(mode=mode.name, size=size):
                    server, port = self.start_server(mode)
                    load = self.run_program("memcaslap", ["memcaslap", "-s", f"127.0.0.1:{port}", "-T", "2",
                                                          "-c", "16", "-t", "2s", "-v", "1", *options],
                                            mode)
                    # The load generator checks every value that it gets.
                    self.assertEqual(re.findall(r"verify_\w+: (\d+)", load.stdout), ["0", "0"])
                    server.stop()
                    rates[mode] = int(re.search(r"TPS: (\d+)", load.stdout).group(1))
                    if mode is BOTH:
                        self.check_carried(server, load)
                        self.record("memcached", f"memcaslap, 16 clients, {size}", server.engine_share(),
                                    "requests/s", rates[KERNEL], rates[BOTH])


class Postgres(ServerTestCase):
    """Runs all programs as PostgreSQL's own user, because the server refuses to run as root.

    The postmaster accepts, and forks a process for each client, so these streams stay on the kernel; the
    tests check that they work.
    """

    BIN = pathlib.Path("/usr/lib/postgresql/15/bin")
    AS_USER = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]

    def setUp(self):
        super().setUp()
        os.chmod(self.directory, 0o777)
        # The user's processes write into the directories that start() makes.
        self.addCleanup(os.umask, os.umask(0))

    def start(self, name, argv, under=False, env=None, stdin=None):
        return super().start(name, argv, under, {"HOME": str(self.directory), **(env or {})}, stdin)

    def start_server(self, mode):
        data = self.directory / f"data-{mode.name}"
        self.run_program("initdb", [*self.AS_USER, self.BIN / "initdb", "-D", data, "--no-sync",
                                    "--auth=trust", "--locale=C", "--encoding=UTF8"], KERNEL)
        key = data / "server.key"
        subprocess.run(["openssl", "req", "-new", "-x509", "-nodes", "-subj", "/CN=localhost",
                        "-keyout", key, "-out", data / "server.crt"], check=True, capture_output=True)
        for file in (key, data / "server.crt"):
            shutil.chown(file, "postgres", "postgres")
        key.chmod(0o600)
        port = sidestep_harness.free_port()
        server = self.start("postgres", [*self.AS_USER, self.BIN / "postgres", "-D", data, "-p", port,
                                         "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off",
                                         "-c", "ssl=on", "-c", f"unix_socket_directories={self.directory}"],
                            mode.server)
        server.wait_listening(port, 60)
        self.wait_until(lambda: "ready to accept connections" in server.stderr, "the server is ready")
        return server, port

    @staticmethod
    def stop_server(server):
        server.process.send_signal(signal.SIGINT)  # fast shutdown
        server.wait(60)

    def connection(self, port, options=""):
        return f"host=127.0.0.1 port={port} dbname=postgres sslmode=disable {options}"

    def psql_argv(self, port, options=""):
        return [*self.AS_USER, self.BIN / "psql", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-v",
                "VERBOSITY=verbose", self.connection(port, options)]

    def psql(self, mode, port, *commands, options="", code=0, stdin=None):
        argv = self.psql_argv(port, options)
        for command in commands:
            argv += ["-c", command]
        return self.run_program("psql", argv, mode, code, stdin)

    def pgbench(self, mode, port, *options):
        program = self.run_program("pgbench", [*self.AS_USER, self.BIN / "pgbench", *options,
                                               self.connection(port)], mode)
        found = re.search(r"^tps = ([0-9.]+)", program.stdout, re.MULTILINE)
        return program, found and float(found.group(1))

    def test_load(self):
        works = {"TPC-B": ["-t", 250], "SELECT": ["-S", "-t", 2000],
                 "SELECT, a connection for each": ["-S", "-M", "prepared", "-C", "-t", 60]}
        rates = {}
        for mode in MODES:
            with self.part(mode=mode.name):
                server, port = self.start_server(mode)
                self.pgbench(mode, port, "-i", "-s", 2, "-q")
                seen = []
                for work, options in works.items():
                    client, rates[work, mode] = self.pgbench(mode, port, "-c", 8, "-j", 2, *options)
                    seen += re.findall("(actually processed|of failed transactions): (.*)", client.stdout)
                # TPC-B must leave these totals in balance.
                seen.append(self.psql(mode, port, """
                    SELECT (SELECT sum(abalance) FROM pgbench_accounts)
                         = (SELECT sum(delta) FROM pgbench_history),
                           (SELECT sum(bbalance) FROM pgbench_branches)
                         = (SELECT sum(tbalance) FROM pgbench_tellers),
                           count(*) FROM pgbench_history""").stdout)
                self.stop_server(server)
                if mode is KERNEL:
                    expected = seen
                self.assertEqual(seen, expected)
                if mode is BOTH:
                    for work in works:
                        self.record("postgres", f"pgbench, 8 clients, {work}", client.engine_share(),
                                    "transactions/s", rates[work, KERNEL], rates[work, BOTH])

    def test_copying(self):
        # In and out again, over a plain connection and over one with TLS.
        rows = self.directory / "rows"
        rows.write_text("".join(f"{i}\t{hashlib.sha256(b'%d' % i).hexdigest() * 4}\n" for i in range(40000)))
        for mode in MODES:
            with self.part(mode=mode.name):
                server, port = self.start_server(mode)
                for options in ("", "sslmode=require"):
                    self.psql(mode, port, "DROP TABLE IF EXISTS t", "CREATE TABLE t (i int, s text)",
                              options=options)
                    with open(rows, encoding="ascii") as file:
                        self.psql(mode, port, "COPY t FROM STDIN", options=options, stdin=file)
                    out = self.psql(mode, port, "COPY t TO STDOUT", options=options)
                    self.assertEqual(out.stdout, rows.read_text())
                    # Rows one after another, through a cursor.
                    out = self.psql(mode, port, "\\set FETCH_COUNT 100", "SELECT s, i FROM t",
                                    options=options)
                    self.assertEqual(len(out.stdout.splitlines()), 40000)
                    used = self.psql(mode, port, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
                                     options=options)
                    self.assertEqual(used.stdout, "t\n" if options else "f\n")
                self.stop_server(server)

    def test_notifications_and_cancelling(self):
        for mode in MODES:
            with self.part(mode=mode.name):
                server, port = self.start_server(mode)
                # psql reports a notification only after its next command.
                read, write = os.pipe()
                listener = self.start("psql", [*self.psql_argv(port), "-c", "LISTEN news", "-f", "-"],
                                      mode.client, stdin=read)
                os.close(read)
                listener.wait_output("LISTEN")
                self.psql(mode, port, "NOTIFY news, 'first'")
                self.psql(mode, port, "NOTIFY news, 'second'")
                os.write(write, b"SELECT 'asked';\n")
                os.close(write)
                listener.wait(60)
                seen = [re.sub("PID [0-9]+", "PID", listener.stdout)]
                # Canceled by another client, and by psql itself (Ctrl-C), which uses a connection of its own
                # for that.
                for way in ("pg_cancel_backend", "pg_terminate_backend", "Ctrl-C"):
                    sleeper = self.start("sleeper", [*self.psql_argv(port, "application_name=sleeper"), "-c",
                                                     "SELECT pg_sleep(600)"], mode.client)
                    query = "FROM pg_stat_activity WHERE application_name = 'sleeper' AND state = 'active'"
                    self.wait_until(lambda: self.psql(mode, port, f"SELECT 1 {query}").stdout == "1\n",
                                    "the query runs")
                    if way == "Ctrl-C":
                        sleeper.process.send_signal(signal.SIGINT)
                    else:
                        seen.append(self.psql(mode, port, f"SELECT {way}(pid) {query}").stdout)
                    seen += [sleeper.wait(60, code=None), sleeper.stderr]
                self.stop_server(server)
                if mode is KERNEL:
                    expected = seen
                self.assertEqual(seen, expected)


if __name__ == "__main__":
    sidestep_harness.main()
