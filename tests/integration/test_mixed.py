#!/usr/bin/env python3
"""Streams of every origin are correct: silent clients, many processes, self, IPv6, fork."""

import json
import signal
import subprocess
import sys

import sidestep_harness
from sidestep_harness import (ALL_MODES, BOTH, CLIENT_ONLY, KERNEL, OWN_ADDRESSES, SERVER_ONLY,
                              SidestepTestCase, pair)

PYTHON = sys.executable
MB = 1 << 20
WAYS = ("block", "poll", "select", "epoll-lt", "epoll-et", "epoll-oneshot")


class Pairs(SidestepTestCase):
    def run_pair(self, mode, server_options=(), client_options=(), host="127.0.0.1",
                 client_host=None):
        server = self.start("server", [pair(), "server", "--host", host, *server_options],
                            mode.server)
        client = self.start("client", [pair(), "client", "--host", client_host or host, "--port",
                                       server.wait_listening(), *client_options], mode.client)
        client.wait(130)
        server.wait(130)
        return server, client

    def carried(self, program):
        """Returns the payload bytes (tx, rx) of all connections, after checking that each is complete."""
        connections = json.loads(program.stdout.splitlines()[-1])["connections"]
        for connection in connections:
            for direction in ("tx", "rx"):
                self.assertEqual(connection[direction]["outcome"], "complete")
                self.assertEqual(connection[direction]["bytes"], connection[direction]["total"])
        return tuple(sum(c[d]["bytes"] for c in connections) for d in ("tx", "rx"))

    def check(self, connections=1, host="127.0.0.1", client_host=None, way=None, size=32 * MB,
              modes=ALL_MODES, **options):
        expected = None
        common = ["--connections", connections]
        if way:
            common += ["--mode", way]
        client_options = [*common, "--bytes", size]
        for key, value in options.items():
            client_options += ["--" + key.replace("_", "-"), value]
        for mode in modes:
            with self.part(mode=mode.name, way=way):
                server, client = self.run_pair(mode, common, client_options, host, client_host)
                found = (self.carried(server), self.carried(client))
                if mode is KERNEL:
                    expected = found
                self.assertEqual(found, expected)
                if mode is BOTH:
                    for program in (server, client):
                        self.assert_over_engine(program, streams=connections)
                else:
                    self.assert_on_kernel(server)
                    self.assert_on_kernel(client)

    def test_every_way_to_wait(self):
        for way in WAYS:
            self.check(connections=4, way=way)

    def test_long_streams_go_over_the_engine(self):
        # The kernel takes as many of the first bytes as it has room for, 12 MB or more (tcp_rmem).
        size = 3072 * MB
        with self.part():
            server, client = self.run_pair(BOTH, (), ["--bytes", size])
            self.assertEqual(self.carried(server), (size, size))
            self.assert_over_engine(server, size, size, streams=1)
            self.assert_over_engine(client, size, size, streams=1)

    def test_one_direction_only(self):
        self.check(bytes_down=0)
        self.check(bytes_up=0)

    def test_tiny_messages(self):
        self.check(size=4 * MB, max_size=7)  # long enough to move before it ends

    def test_empty_streams(self):
        # These streams are so short that they need not move: only the result counts.
        for mode in ALL_MODES:
            with self.part(mode=mode.name):
                server, client = self.run_pair(mode, (), ["--bytes", 0])
                self.assertEqual((self.carried(server), self.carried(client)), ((0, 0), (0, 0)))

    def test_many_streams_between_two_processes(self):
        self.check(connections=100, way="epoll-lt", size=8 * MB)

    def test_ipv6(self):
        self.check(host="::1")

    def test_ipv4_client_of_an_ipv6_server(self):
        self.check(host="::", client_host="127.0.0.1")

    def test_ipv4_in_ipv6_client(self):
        self.check(host="0.0.0.0", client_host="::ffff:127.0.0.1")

    def test_two_addresses_of_one_host(self):
        self.check(host="127.0.0.2")

    def test_two_addresses_of_one_host_other_than_loopback(self):
        addresses = subprocess.run(["ip", "-brief", "address"], capture_output=True, text=True,
                                   check=True).stdout
        if OWN_ADDRESSES[0] not in addresses:
            self.skipTest("needs a network namespace of its own")
        self.check(host=OWN_ADDRESSES[0])

    def test_a_process_connected_to_itself(self):
        for way in WAYS:
            for under in (False, True):
                with self.part(way=way, under=under):
                    program = self.start("self", [pair(), "self", "--mode", way, "--connections",
                                                  4, "--bytes", 16 * MB], under)
                    program.wait(130)
                    for line in program.stdout.splitlines()[-2:]:
                        for connection in json.loads(line)["connections"]:
                            for direction in ("tx", "rx"):
                                self.assertEqual(connection[direction]["outcome"], "complete")
                                self.assertEqual(connection[direction]["bytes"], 16 * MB)
                    if under:
                        # This process holds both ends of each connection.
                        self.assert_all_over_engine(program, streams=8)

    def test_processes_all_to_all(self):
        count = 4
        for under in ((), (0, 1, 2, 3), (0, 2, 3)):
            with self.part(under=under):
                self.check_all_to_all(count, under)

    def check_all_to_all(self, count, under):
        servers = [[self.start(f"server{i}-for{j}", [pair(), "server", "--mode", "epoll-lt",
                                                     "--connections", 2], i in under)
                    for j in range(count)] for i in range(count)]
        clients = []
        for i in range(count):
            for j in range(count):
                port = servers[i][j].wait_listening()
                clients.append(self.start(
                    f"client{j}-of{i}", [pair(), "client", "--port", port, "--connections", 2,
                                         "--mode", WAYS[(i + j) % len(WAYS)], "--bytes", 32 * MB],
                    j in under))
        for client in clients:
            client.wait(130)
            self.assertEqual(self.carried(client), (64 * MB, 64 * MB))
        for i in range(count):
            for j in range(count):
                server, client = servers[i][j], clients[i * count + j]
                server.wait(130)
                self.assertEqual(self.carried(server), (64 * MB, 64 * MB))
                if i in under and j in under:
                    self.assert_over_engine(server, streams=2)
                    self.assert_over_engine(client, streams=2)
                else:
                    self.assert_on_kernel(server)
                    self.assert_on_kernel(client)


def script(body):
    """Returns the command of a small Python program, `server` or `client PORT`; `stream` connects the two."""
    return [PYTHON, "-c", f"""
import os, socket, sys, time
def take(stream, n):
    data = b""
    while len(data) < n:
        piece = stream.recv(n - len(data))
        if not piece:
            raise EOFError(f"{{len(data)}} of {{n}} bytes")
        data += piece
    return data
if sys.argv[1] == "server":
    listener = socket.create_server(("127.0.0.1", 0))
    print("listening", listener.getsockname()[1], flush=True)
    stream, _ = listener.accept()
else:
    stream = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
stream.settimeout(60)
role = sys.argv[1]
{body}
"""]


STOP = """
import signal
def stop(process):
    os.kill(process, signal.SIGSTOP)
    tasks = f"/proc/{process}/task"
    def is_stopped(task):
        with open(f"{tasks}/{task}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"
    while not all(map(is_stopped, os.listdir(tasks))):
        time.sleep(0.001)
"""


class Conversations(SidestepTestCase):
    def run_scripts(self, mode, body, continues=False):
        server = self.start("server", [*script(body), "server"], mode.server)
        client = self.start("client", [*script(body), "client", server.wait_listening()],
                            mode.client)
        client.wait(70)
        if continues:
            server.process.send_signal(signal.SIGCONT)
        server.wait(70)
        return server, client

    def check(self, body, moved=False, **options):
        """Runs a body that prints what it sees, and checks that it sees the same in every mode.

        `moved`: with both ends under Sidestep, the stream must also have been on the engine.
        `continues`: a server that its client has stopped is continued when the client has ended.
        """
        expected = None
        for mode in ALL_MODES:
            with self.part(mode=mode.name):
                server, client = self.run_scripts(mode, body, **options)
                found = [p.stdout.splitlines()[-1] for p in (server, client)]
                if mode is KERNEL:
                    expected = found
                    self.assertTrue(all(line.startswith("saw") for line in found), found)
                self.assertEqual(found, expected)
                if mode is BOTH and moved:
                    for program in (server, client):
                        self.assertGreater(program.engine_bytes("tx"), 0, program.name)
                        self.assertGreater(program.engine_bytes("rx"), 0, program.name)
                if mode in (SERVER_ONLY, CLIENT_ONLY):
                    self.assert_on_kernel(server)
                    self.assert_on_kernel(client)

    def test_a_silent_client_whose_server_speaks_first(self):
        self.check("""
if role == "server":
    time.sleep(0.3)
    stream.sendall(b"220 ready\\r\\n")
    print("saw", take(stream, 4))
else:
    print("saw", take(stream, 11))
    stream.sendall(b"QUIT")
""")

    def test_a_client_that_never_speaks(self):
        self.check("""
if role == "server":
    for _ in range(100):
        stream.sendall(b"tick" * 16)
        time.sleep(0.002)
    stream.shutdown(socket.SHUT_WR)
    print("saw", stream.recv(1))
else:
    data = take(stream, 6400)
    print("saw", data == b"tick" * 1600, stream.recv(1))
""")

    def test_an_answer_after_the_half_close(self):
        self.check("""
if role == "client":
    stream.sendall(b"q" * 100000)
    stream.shutdown(socket.SHUT_WR)
    data = take(stream, 6)
    print("saw", data, stream.recv(1))
else:
    n = 0
    while piece := stream.recv(65536):
        n += len(piece)
    time.sleep(0.2)
    stream.sendall(b"%6d" % n)
    print("saw", n)
""")

    def test_a_fork_with_open_streams_and_the_child_goes_on(self):
        self.check(FORK.format(server_side="child", client_side="parent"), moved=True)

    def test_a_fork_with_open_streams_and_the_parent_goes_on(self):
        self.check(FORK.format(server_side="parent", client_side="parent"), moved=True)

    def test_forks_on_both_sides(self):
        self.check(FORK.format(server_side="child", client_side="child"), moved=True)

    def test_a_forking_server_with_one_process_for_each_connection(self):
        body = """
import threading
def talk(s, sign):
    total = 0
    for i in range(50):
        s.sendall(sign * 1000)
        total += sum(take(s, 1000))
    return total
if role == "server":
    children = []
    connections = [stream]
    while len(connections) < 5:
        connections.append(listener.accept()[0])
    for s in connections:
        s.settimeout(60)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if talk(s, b"s") == 50 * 1000 * ord("c") else 1)
        children.append(pid)
        s.close()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    print("saw", codes)
else:
    streams = [stream] + [socket.create_connection(("127.0.0.1", int(sys.argv[2])))
                          for _ in range(4)]
    sums = [None] * 5
    def one(i):
        streams[i].settimeout(60)
        sums[i] = talk(streams[i], b"c")
    threads = [threading.Thread(target=one, args=(i,)) for i in range(5)]
    for t in threads: t.start()
    for t in threads: t.join()
    print("saw", sums)
"""
        self.check(body)

    def test_a_fork_while_the_peer_does_not_answer(self):
        # Nobody can bring the stream down in time, so the child has lost it and gets an error.
        body = STOP + """
import errno
def talk(mine, n):
    for _ in range(n):
        stream.sendall(mine * 1000)
        data = take(stream, 1000)
    return data[:3]
if role == "server":
    stream.sendall(b"%7d" % os.getpid())
    talk(b"s", 200)
    print("saw", talk(b"S", 200), stream.recv(1))
else:
    server = int(take(stream, 7))
    talk(b"c", 200)
    stop(server)
    child = os.fork()
    if child == 0:
        try:
            stream.send(b"x")
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.kill(server, signal.SIGCONT)
    data = talk(b"C", 200)
    stream.shutdown(socket.SHUT_WR)
    print("saw", errno.errorcode.get(code), data)
"""
        with self.part():
            server, client = self.run_scripts(BOTH, body)
            self.assertEqual(client.stdout.splitlines()[-1], "saw ECONNRESET b'SSS'")
            self.assertEqual(server.stdout.splitlines()[-1], "saw b'CCC' b''")
            for program in (server, client):
                self.assertGreater(program.engine_bytes("tx"), 0, program.name)

    def test_an_end_while_the_peer_does_not_answer(self):
        # Sends more pieces than the peer's queue takes; the peer gets all of them anyway.
        self.check(STOP + """
def talk(mine):
    for _ in range(200):
        stream.sendall(mine * 1000)
        take(stream, 1000)
if role == "server":
    stream.sendall(b"%7d" % os.getpid())
    talk(b"s")
    got = b"".join(iter(lambda: stream.recv(65536), b""))
    print("saw", len(got), got == b"0123456789" * 10000)
else:
    server = int(take(stream, 7))
    talk(b"c")
    stop(server)
    for _ in range(10000):
        stream.sendall(b"0123456789")
    print("saw the end")
""", moved=True, continues=True)

    def test_a_program_started_with_an_open_stream_as_its_standard_input(self):
        self.check("""
import subprocess
if role == "server":
    assert take(stream, 5) == b"hello"
    stream.settimeout(None)  # cat wants a stream that blocks
    result = subprocess.run(["/bin/cat"], stdin=stream, stdout=subprocess.PIPE, timeout=60)
    print("saw", len(result.stdout), result.stdout.count(b"z"), result.returncode)
else:
    stream.sendall(b"hello")
    time.sleep(0.3)
    for _ in range(100):
        stream.sendall(b"z" * 10000)
    stream.shutdown(socket.SHUT_WR)
    print("saw", stream.recv(1))
""")


# Streams carry data before, during, and after one side's fork; then each side's chosen process goes on.
FORK = """
import hashlib, threading
def noise(seed, n):
    out = bytearray()
    while len(out) < n:
        out += hashlib.sha256(f"{{seed}}:{{len(out)}}".encode()).digest()
    return bytes(out[:n])
def exchange(name, n):
    mine, theirs = (f"{{name}}-{{r}}" for r in
                    ((role, "client") if role == "server" else (role, "server")))
    sender = threading.Thread(target=stream.sendall, args=(noise(mine, n),))
    sender.start()
    right = take(stream, n) == noise(theirs, n)
    sender.join()
    return right
for _ in range(50):  # long enough for the stream to have moved
    stream.sendall(b"x" * 64)
    take(stream, 64)
    time.sleep(0.002)
results = [exchange("before", 3000000)]
# Something is under way while the fork happens.
stream.sendall(noise(role, 20000))
side = "{server_side}" if role == "server" else "{client_side}"
out, inp = os.pipe()
pid = os.fork()
if (pid == 0) == (side == "child"):
    other = "client" if role == "server" else "server"
    results.append(take(stream, 20000) == noise(other, 20000))
    results.append(exchange("after", 3000000))
    stream.shutdown(socket.SHUT_WR)
    results.append(stream.recv(1))
    if pid == 0:
        os.write(inp, repr(results).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    print("saw", results)
else:
    stream.close()
    if pid == 0:
        os._exit(0)
    os.close(inp)
    text = b""
    while piece := os.read(out, 65536):
        text += piece
    os.waitpid(pid, 0)
    print("saw", text.decode())
"""


if __name__ == "__main__":
    sidestep_harness.main()
