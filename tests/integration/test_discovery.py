#!/usr/bin/env python3
"""Nodes on other hosts are asked over UDP; here two hosts are two network namespaces and a cable."""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

import sidestep_harness
from network_hosts import Host, HostsTestCase
from sidestep_harness import BOTH, CLIENT_ONLY, KERNEL, SERVER_ONLY, pair, tool

MB = 1 << 20
PORT = 4798  # SIDESTEP_DISCOVERY_PORT, unless somebody sets it
NO_DEVICE = "no device reaches the peer's host"
NO_NODE = "no node answers on the peer's host"
UNPROVEN = "no process was shown to hold the other end"
ASKING = "asking for the other end"
NOT_ASKED = "not asked for by the other end"
NO_KEY = "other hosts are not joined without SIDESTEP_KEY_FILE"
BAD_KEY = "the key of SIDESTEP_KEY_FILE can't be used"
NOT_HELD = "no node on the peer's host holds the other end"
GIVEN_UP_AFTER = 4.25  # seconds from the first question to a silent host
PYTHON = sys.executable


# `server ADDRESS` echoes until it is interrupted. `client ADDRESS PORT SOURCE` sends until its standard input
# ends, one piece at a time, and checks what comes back; SOURCE is empty or the client's own address.
ECHO = """
import hashlib, os, select, socket, sys
role, host = sys.argv[1:3]
if role == "server":
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)
    print("listening", listener.getsockname()[1], flush=True)
    try:
        while True:
            stream, _ = listener.accept()
            while data := stream.recv(65536):
                stream.sendall(data)
            stream.close()
    except KeyboardInterrupt:
        sys.exit(0)
source = (sys.argv[4], 0) if sys.argv[4] else None
stream = socket.create_connection((host, int(sys.argv[3])), source_address=source)
stream.settimeout(60)
print("local", stream.getsockname()[1], flush=True)
n = 0
while True:
    piece = hashlib.sha256(b"%d" % n).digest() * 64
    stream.sendall(piece)
    back = b""
    while len(back) < len(piece):
        more = stream.recv(len(piece) - len(back))
        assert more, "the stream ended early"
        back += more
    assert back == piece, f"piece {n} came back wrong"
    n += 1
    if select.select([0], [], [], 0.01)[0]:
        break
stream.shutdown(socket.SHUT_WR)
assert stream.recv(1) == b"", "bytes behind the end"
print("saw", n, flush=True)
"""

# Asks a host, as a node does, who holds an end of a connection; each question has another port of one
# address.
ASK = """
import json, socket, struct, sys, time
host, port, times, local, remote, source, *counts = sys.argv[1:]
def address(text):
    ip, number = text.rsplit(" ", 1)
    packed = socket.inet_pton(socket.AF_INET6, ip if ":" in ip else "::ffff:" + ip)
    return packed + struct.pack("=HH", int(number), 0)
ends = address(local) + address(remote)
HEAD, MAGIC, VERSION, SELF = "=IHHQQQHHI", 0x32504453, @VERSION@, 77
NO_MAC = bytes(32)  # nobody here has a key
answers = []
for number in range(int(times)):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.settimeout(0.25)
        asker.bind((source, 0))
        question = struct.pack(HEAD, MAGIC, VERSION, 1, number, SELF, 0, 0, 0, 0) + ends \
            + struct.pack("=QQ", *map(int, counts)) + bytes(24) + NO_MAC
        answer = None
        deadline = time.monotonic() + 5
        while answer is None and time.monotonic() < deadline:
            try:
                asker.sendto(question, (host, int(port)))
                data, sender = asker.recvfrom(1000)
            except (TimeoutError, ConnectionRefusedError):
                continue
            magic, version, kind, told, _, to, nid, *_ = struct.unpack_from(HEAD, data)
            right = (len(data), magic, version, kind, told, to, data[40:80], data[120:], sender) == \\
                (152, MAGIC, VERSION, 2, number, SELF, ends, NO_MAC, (host, int(port)))
            what, = struct.unpack_from("=I", data, 96)
            answer = [("no", "yes", "later")[what], nid] if right else ["wrong", data.hex()]
            if answer[0] == "later":
                answer = None
        answers.append(answer)
print(json.dumps(answers))
""".replace("@VERSION@", sidestep_harness.protocol_version())

# Asks for a connection, as a node that nobody has heard of would, and prints how many answers came.
CONNECT = """
import socket, struct, sys
host, port = sys.argv[1:]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
    stranger.settimeout(0.25)
    answers = 0
    for number in range(1, 6):
        head = struct.pack("=IHHQQQHHI48xI", 0x32504453, @VERSION@, 3, number, 78, 0, 5, 0, 0, number)
        stranger.sendto(head.ljust(152, bytes(1)), (host, int(port)))
        try:
            stranger.recv(1000)
            answers += 1
        except TimeoutError:
            pass
    print(answers)
""".replace("@VERSION@", sidestep_harness.protocol_version())

# Answers every question with "nobody here holds that end". With `wrong`, the answer is that of somebody who
# knows everything about the question but its nonce.
DENY = """
import socket, struct, sys
responder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
responder.bind((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
while True:
    data, asker = responder.recvfrom(1000)
    head, (question, asker_name, _, nid) = data[:6], struct.unpack_from("=QQQH", data, 8)
    if sys.argv[3] == "wrong":
        question = question % (1 << 32) | struct.unpack_from("=I", data, 96)[0] << 32
    answer = struct.pack("=HQQQHHI", 2, question, 79, asker_name, 0, nid, 0) + data[40:80]
    responder.sendto((head + answer).ljust(152, bytes(1)), asker)
"""

# A transparent proxy: each end sees the address and the port of the other. It greets the client, and passes
# on what both say, with the client's words in capitals.
PROXY = """
import fcntl, select, socket, sys, time
port = int(sys.argv[1])
IP_TRANSPARENT = 19
listener = socket.socket()
listener.setsockopt(socket.SOL_IP, IP_TRANSPARENT, 1)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("0.0.0.0", port))
listener.listen()
print("listening", port, flush=True)
near, peer = listener.accept()
# The client has the greeting before the server's end exists: no question can come before they differ.
near.sendall(b"welcome")
SIOCOUTQ = 0x5411
while fcntl.ioctl(near, SIOCOUTQ, b"1234") != bytes(4):
    time.sleep(0.001)
far = socket.socket()
far.setsockopt(socket.SOL_IP, IP_TRANSPARENT, 1)
far.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
far.bind(peer)
far.connect(near.getsockname())
while True:
    for ready in select.select([near, far], [], [])[0]:
        data = ready.recv(65536)
        if not data:
            sys.exit(0)
        (far if ready is near else near).sendall(data.upper() if ready is near else data)
"""
TALK_OVER_PROXY = """
import socket, sys, time
if sys.argv[1] == "server":
    listener = socket.create_server((sys.argv[2], int(sys.argv[3])))
    print("listening", sys.argv[3], flush=True)
    stream, peer = listener.accept()
    print("peer", *peer, flush=True)
    for number in range(40):
        assert stream.recv(4, socket.MSG_WAITALL) == b"WORD", number
        stream.sendall(b"%04d" % number)
    assert stream.recv(1) == b""
else:
    stream = socket.create_connection((sys.argv[2], int(sys.argv[3])))
    print("local", *stream.getsockname(), flush=True)
    assert stream.recv(7, socket.MSG_WAITALL) == b"welcome"
    for number in range(40):
        stream.sendall(b"word")
        assert stream.recv(4, socket.MSG_WAITALL) == b"%04d" % number, number
        time.sleep(0.05)
"""

# Prints what an edge-triggered set reports about a connection within 5 s.
WATCH = """
import select, socket, sys, time
stream = socket.socket()
stream.setblocking(False)
try:
    stream.connect((sys.argv[1], int(sys.argv[2])))
except BlockingIOError:
    pass
told = select.epoll()
told.register(stream, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)
until, events = time.monotonic() + 5, []
while (left := until - time.monotonic()) > 0:
    events += [event for _, event in told.poll(left)]
# The kernel tells of the error, and then of the end: a look in between, which is rare, shows both in turn.
if events[:1] == [select.EPOLLERR] and len(events) == 2:
    del events[0]
print(events, stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
"""

# Holds the discovery port without sharing it, like a node of another user.
HOLD = f"""
import socket
holder = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
holder.bind(("::", {PORT}))
print("holds", flush=True)
while True:
    holder.recv(1000)
"""


@unittest.skipIf(os.geteuid() != 0,
                 "NOT TESTED: discovery between hosts needs root, to make network namespaces")
class TwoHosts(HostsTestCase):
    def start_on(self, host, name, argv, under=False, **options):
        return self.start(name, host.command(*argv), under, **options)

    def documents(self, host):
        """Returns the status documents of the nodes of a host, by pid."""
        program = self.start_on(host, "stat", [tool(), "stat", "--json"])
        program.wait(30)
        return {d["pid"]: d for d in json.loads(program.stdout)}

    def wait_for_reason(self, host, program, reason, within, count=1):
        """Waits until the node has left its streams on the kernel for this reason."""
        began = time.monotonic()
        while True:
            # A server becomes a node, and has the stream, only when it has accepted it.
            document = self.documents(host).get(program.pid, {"kernel_reasons": {}})
            if sum(document["kernel_reasons"].values()) == count and \
                    not {ASKING, NOT_ASKED} & document["kernel_reasons"].keys():
                self.assertEqual(document["kernel_reasons"], {reason: count})
                return document
            self.assertLess(time.monotonic() - began, within, json.dumps(document, indent=1))
            time.sleep(0.05)

    def start_echo(self, here, there, mode, ipv6=False, server_env=None, client_env=None, address=None, source=""):
        """Starts a server on `here` and a client on `there`; the client runs until it is told to stop."""
        address = address or (here.ipv6 if ipv6 else here.ipv4)
        server = self.start_on(here, "server", [PYTHON, "-c", ECHO, "server", address],
                               mode.server, env=server_env)
        return server, self.start_client(there, address, server.wait_listening(), mode.client,
                                         client_env, source)

    def start_client(self, host, address, port, under, env=None, source=""):
        reading, writing = os.pipe()
        client = self.start_on(host, "client", [PYTHON, "-c", ECHO, "client", address, port, source],
                               under, env=env, stdin=reading)
        os.close(reading)
        self.addCleanup(lambda: client.enough and os.close(client.enough))
        client.enough = writing
        client.wait_output("^local ")
        return client

    def finish(self, client, server=None):
        """Lets the client send its last piece and end its stream, then ends the server."""
        os.close(client.enough)
        client.enough = None
        client.wait(60)
        self.assertRegex(client.stdout, r"(?m)^saw [1-9]")
        self.assert_on_kernel(client)
        if server:
            server.process.send_signal(signal.SIGINT)
            server.wait(30)
            self.assert_on_kernel(server)
        for program in filter(None, (client, server)):
            self.assertEqual(program.stats() is not None, program.under, program.name)

    # ---- both hosts run Sidestep

    def test_the_node_on_the_other_host_is_found(self):
        for ipv6 in (False, True):
            with self.hosts(ipv6=ipv6) as (here, there):
                server, client = self.start_echo(here, there, BOTH, ipv6)
                self.wait_for_reason(here, server, NO_DEVICE, within=3)
                asked = self.documents(there)[client.pid]
                self.assertEqual(asked["kernel_reasons"], {NOT_ASKED: 1})
                self.assertGreater(asked["engine"]["queries_answered"], 0)
                self.finish(client, server)

    def test_a_stream_of_a_second_address_is_found(self):
        # Datagrams leave from the stream's own address, not from the one that routing would choose.
        for ipv6 in (False, True):
            second = ["fd77::8", "fd77::9"] if ipv6 else ["10.77.0.8", "10.77.0.9"]
            with self.hosts(ipv6=ipv6) as (here, there):
                for host, address in zip((here, there), second):
                    length = 128 if ipv6 else 32
                    host.run("ip", "address", "add", f"{address}/{length}", "dev", "cable", *(["nodad"] * ipv6))
                for host, address in ((here, second[1]), (there, second[0])):
                    host.run("ip", "route", "add", address, "dev", "cable", "src", host.ipv6 if ipv6 else host.ipv4)
                server, client = self.start_echo(here, there, BOTH, ipv6, address=second[0], source=second[1])
                document = self.wait_for_reason(here, server, NO_DEVICE, within=3)
                self.assertEqual(document["engine"]["unproven"], 0)
                self.finish(client, server)

    def test_nobody_is_told_who_asks_from_elsewhere(self):
        with self.hosts() as (here, there):
            here.run("ip", "address", "add", "10.77.0.8/24", "dev", "cable")
            ((client, port),) = holders = self.start_holders(here, there, 1)
            self.assertEqual(self.ask(here, there, port, client, 1, source="10.77.0.8"), [None])
            engine = self.documents(there)[client.pid]["engine"]
            self.assertGreater(engine["unproven"], 0)
            self.assertEqual(engine["queries_answered"], 0)
            nid = self.nids(there)[client.pid]
            self.assertEqual(self.ask(here, there, port, client, 1), [["yes", nid]])
            self.end(holders)

    def test_who_holds_no_end_is_not_connected(self):
        with self.hosts() as (here, there):
            ((client, _),) = holders = self.start_holders(here, there, 1)
            program = self.start_on(here, "stranger", [PYTHON, "-c", CONNECT, there.ipv4, PORT])
            program.wait(30)
            self.assertEqual(program.stdout, "0\n")
            self.assertEqual(self.documents(there)[client.pid]["engine"]["unproven"], 5)
            self.end(holders)

    def test_every_byte_is_right_between_hosts(self):
        for mode in (KERNEL, BOTH, SERVER_ONLY, CLIENT_ONLY):
            for connections, size in ((4, 32 * MB), (50, MB)):
                with self.hosts(mode=mode.name, connections=connections) as (here, there):
                    common = ["--host", here.ipv4, "--connections", connections, "--mode",
                              "epoll-lt"]
                    server = self.start_on(here, "server", [pair(), "server", *common],
                                           mode.server)
                    client = self.start_on(there, "client", [
                        pair(), "client", *common, "--bytes", size, "--port",
                        server.wait_listening()], mode.client)
                    client.wait(130)
                    server.wait(130)
                    for program in (server, client):
                        ends = json.loads(program.stdout.splitlines()[-1])["connections"]
                        self.assertEqual(len(ends), connections)
                        for end in ends:
                            for direction in ("tx", "rx"):
                                self.assertEqual(end[direction]["outcome"], "complete")
                                self.assertEqual(end[direction]["bytes"], size)
                        self.assert_on_kernel(program)

    # ---- the other host does not run Sidestep

    def test_a_host_without_sidestep_is_asked_in_vain(self):
        with self.hosts() as (here, there):
            server, client = self.start_echo(here, there, SERVER_ONLY)
            began = time.monotonic()
            self.wait_for_reason(here, server, NO_NODE, within=GIVEN_UP_AFTER + 4)
            self.assertGreater(time.monotonic() - began, GIVEN_UP_AFTER - 2, "not asked again")
            asked = self.documents(here)[server.pid]["engine"]["queries_sent"]
            self.assertGreater(asked, 1)
            self.finish(client)

            # The node remembers this for a while: the next stream to this host is decided at once.
            client = self.start_client(there, here.ipv4, server.wait_listening(), False)
            document = self.wait_for_reason(here, server, NO_NODE, within=2, count=2)
            self.assertEqual(document["engine"]["queries_sent"], asked)
            self.finish(client, server)

    def test_a_host_whose_nodes_do_not_hold_the_end(self):
        with self.hosts() as (here, there):
            # Another process on that host runs Sidestep; the client does not.
            _, bystander = self.start_echo(here, there, CLIENT_ONLY)
            server, client = self.start_echo(here, there, SERVER_ONLY)
            self.wait_for_reason(here, server, NOT_HELD, within=3)
            self.finish(client, server)
            self.end([(bystander, None)])

    def test_an_answer_to_another_question_is_none(self):
        for nonce, reason in (("right", NOT_HELD), ("wrong", NO_NODE)):
            with self.hosts(nonce=nonce) as (here, there):
                denier = self.start_on(there, "denier", [PYTHON, "-c", DENY, there.ipv4, PORT, nonce])
                denier.wait_output("^listening$")
                server, client = self.start_echo(here, there, SERVER_ONLY)
                self.wait_for_reason(here, server, reason, within=GIVEN_UP_AFTER + 4)
                self.finish(client, server)
                denier.kill()

    # ---- keys

    def key(self, text, mode=0o600):
        """Returns the environment of a program that has this key."""
        path = self.directory / f"key-{hashlib.sha256(text).hexdigest()[:8]}-{mode:o}"
        path.write_bytes(text)
        path.chmod(mode)
        return {"SIDESTEP_KEY_FILE": str(path), "SIDESTEP_LOG_LEVEL": "info", "SIDESTEP_ALLOW_NO_KEY": "no"}

    def log_lines(self, program, pattern):
        log = program.directory / "sidestep.log"
        text = log.read_text() if log.exists() else ""
        return [line for line in text.splitlines() if re.search(pattern, line)]

    def test_hosts_with_the_same_key_find_each_other(self):
        for ipv6 in (False, True):
            with self.hosts(ipv6=ipv6) as (here, there):
                key = self.key(b"the key of the cluster")
                server, client = self.start_echo(here, there, BOTH, ipv6, key, key)
                document = self.wait_for_reason(here, server, NO_DEVICE, within=3)
                asked = self.documents(there)[client.pid]
                self.assertGreater(asked["engine"]["queries_answered"], 0)
                for one in (document, asked):
                    self.assertEqual(one["engine"]["datagrams_refused"], 0)
                self.finish(client, server)

    def test_hosts_without_a_key_are_joined_only_where_that_is_allowed(self):
        allow, refuse = ({"SIDESTEP_ALLOW_NO_KEY": word, "SIDESTEP_LOG_LEVEL": "info"} for word in ("yes", "no"))
        for name, server_env, client_env, reasons in (("both", refuse, refuse, (NO_KEY, NO_KEY)),
                                                      ("the asker", refuse, allow, (NO_KEY, None)),
                                                      ("the asked one", allow, refuse, (NO_NODE, NO_KEY))):
            with self.hosts(refuses=name) as (here, there):
                server, client = self.start_echo(here, there, BOTH, False, server_env, client_env)
                for host, program, env, reason in ((here, server, server_env, reasons[0]),
                                                   (there, client, client_env, reasons[1])):
                    if reason is not None:
                        document = self.wait_for_reason(host, program, reason, within=GIVEN_UP_AFTER + 4)
                        self.assertEqual(document["engine"]["queries_answered"], 0)
                    if env is refuse:
                        self.assertEqual(document["engine"]["queries_sent"], 0)
                    # The discovery port is open on the host that listens to other hosts.
                    self.assertEqual(self.has_port_open(host), env is allow)
                self.finish(client, server)

    def test_a_program_does_not_see_that_its_connection_is_left_on_the_kernel(self):
        # Not even a program that waits for edge-triggered events while it connects and afterwards.
        with self.hosts() as (here, there):
            server = self.start_on(here, "server", [PYTHON, "-c", ECHO, "server", here.ipv4])
            absent = here.ipv4.rsplit(".", 1)[0] + ".9"
            for address, port in ((here.ipv4, server.wait_listening()), (absent, 7)):
                seen = []
                for under in (False, True):
                    client = self.start_on(there, "watch", [PYTHON, "-c", WATCH, address, port], under,
                                           env={"SIDESTEP_ALLOW_NO_KEY": "no"})
                    client.wait(30)
                    seen.append(client.stdout)
                self.assertEqual(seen[0], seen[1])
                self.assertEqual(client.stats()["kernel_reasons"], {NO_KEY: 1})
            server.process.send_signal(signal.SIGINT)
            server.wait(30)

    def test_nodes_are_named_without_a_key(self):
        with self.hosts() as (here, there):
            env = {"SIDESTEP_ALLOW_NO_KEY": "no", "SIDESTEP_NODES": there.ipv4}
            server, client = self.start_echo(here, there, SERVER_ONLY, False, env)
            self.wait_for_reason(here, server, NO_KEY, within=3)
            self.assertEqual(len(self.log_lines(server, "SIDESTEP_NODES is set, but")), 1)
            self.finish(client, server)

    @staticmethod
    def has_port_open(host):
        table = subprocess.run(host.command("cat", "/proc/net/udp6"), capture_output=True, text=True, check=True)
        return f":{PORT:04X} " in table.stdout

    def test_hosts_with_different_keys_do_not_talk(self):
        one, other, none = self.key(b"the key of the cluster"), self.key(b"another cluster's key"), {
            "SIDESTEP_LOG_LEVEL": "info"}
        for name, server_key, client_key, told in (
                ("different", one, other, "made with another key"),
                ("the asker has none", none, one, "it has no key"),
                ("the asked one has none", one, none, "it has a key")):
            with self.hosts(keys=name) as (here, there):
                server, client = self.start_echo(here, there, BOTH, False, server_key, client_key)
                document = self.wait_for_reason(here, server, NO_NODE, within=GIVEN_UP_AFTER + 4)
                asked = self.documents(there)[client.pid]["engine"]
                self.assertEqual(asked["datagrams_refused"], document["engine"]["queries_sent"])
                self.assertEqual(asked["queries_answered"], 0)
                lines = self.log_lines(client, "refused")
                self.assertEqual(len(lines), 1, lines)
                self.assertIn(told, lines[0])
                self.assertIn(here.ipv4, lines[0])
                self.finish(client, server)

    def test_forged_questions_are_not_answered(self):
        with self.hosts() as (here, there):
            key = self.key(b"the key of the cluster")
            server, client = self.start_echo(here, there, CLIENT_ONLY, client_env=key)
            self.assertEqual(self.ask(here, there, server.wait_listening(), client, 1), [None])
            asked = self.documents(there)[client.pid]["engine"]
            self.assertGreater(asked["datagrams_refused"], 0)
            self.assertEqual(asked["queries_answered"], 0)
            self.end([(client, None)])

    def test_a_key_that_cannot_be_used_leaves_the_program_on_the_kernel(self):
        good = self.key(b"the key of the cluster")
        absent = {"SIDESTEP_KEY_FILE": str(self.directory / "absent")}
        for name, server_key, client_key, bad_end in (
                ("too short", self.key(b"short"), self.key(b"short"), "both"),
                ("for everybody", self.key(b"the key of the cluster", 0o644), good, "server"),
                ("absent", {}, absent, "client")):
            with self.hosts(key=name) as (here, there):
                server, client = self.start_echo(here, there, BOTH, False, server_key, client_key)
                document = self.wait_for_reason(here, server, NO_NODE if bad_end == "client" else BAD_KEY,
                                                within=GIVEN_UP_AFTER + 4)
                asked = self.documents(there)[client.pid]["engine"]
                for counters in (document["engine"], asked):
                    self.assertEqual(counters["queries_answered"], 0)
                    # With a bad key, a node sends nothing and receives nothing.
                    self.assertEqual(counters["datagrams_refused"], 0)
                for program, end in ((server, "server"), (client, "client")):
                    lines = self.log_lines(program, "SIDESTEP_KEY_FILE")
                    self.assertEqual(len(lines), bad_end in (end, "both"), lines)
                    for line in lines:
                        self.assertIn("16 to 4096 bytes", line)
                self.finish(client, server)

    def test_a_bad_key_does_not_keep_streams_of_one_host_on_the_kernel(self):
        with self.hosts() as (here, _):
            key = self.key(b"short")
            server = self.start_on(here, "server", [PYTHON, "-c", ECHO, "server", here.ipv4], True,
                                   env=key)
            client = self.start_client(here, here.ipv4, server.wait_listening(), True, key)
            deadline = time.monotonic() + 5
            while not self.documents(here).get(server.pid, {}).get("streams.engine"):
                self.assertLess(time.monotonic(), deadline, "not on the engine")
                time.sleep(0.05)
            os.close(client.enough)
            client.enough = None
            client.wait(60)
            server.process.send_signal(signal.SIGINT)
            server.wait(30)

    # ---- who answers for a host

    def ask(self, here, there, server_port, client, times, source=None, counts=(0, 0)):
        """Returns the answers to questions about the client's end, each asked from another port.

        `counts`: how many bytes the asker's end claims to have received, and to have had acknowledged.
        """
        local = int(client.wait_output(r"^local (\d+)$").group(1))
        program = self.start_on(here, "ask", [PYTHON, "-c", ASK, there.ipv4, PORT, times,
                                              f"{there.ipv4} {local}",
                                              f"{here.ipv4} {server_port}", source or here.ipv4, *counts])
        program.wait(120)
        return json.loads(program.stdout)

    def test_an_end_that_has_received_what_was_never_sent_is_another(self):
        with self.hosts() as (here, there):
            holders = self.start_holders(here, there, 1)
            client, port = holders[0]
            nid = self.documents(there)[client.pid]["nid"]
            for number, counts in enumerate(((1 << 40, 0), (0, 1 << 40), ((1 << 64) - 1, (1 << 64) - 1)), 1):
                answers = self.ask(here, there, port, client, 2, counts=counts)
                self.assertEqual([answer for answer, _ in answers], ["no"] * 2, counts)
                self.assertEqual(self.documents(there)[client.pid]["engine"]["unproven"], 2 * number)
            self.assertEqual(self.ask(here, there, port, client, 1, counts=(64, 64)), [["yes", nid]])
            self.end(holders)

    def test_a_transparent_proxy_is_not_passed_by(self):
        with self.part(), contextlib.ExitStack() as stack:
            client_host, proxy_host, server_host = hosts = [Host(number) for number in (1, 2, 3)]
            for host in hosts:
                stack.callback(host.close)
            for host, cable, net in ((client_host, "first", 78), (server_host, "second", 79)):
                proxy_host.lay_cable(host, cable)
                for at, device, number in ((proxy_host, cable, 1), (host, "cable", 2)):
                    at.run("ip", "address", "add", f"10.{net}.0.{number}/24", "dev", device)
                    at.run("ip", "link", "set", device, "up")
                host.run("ip", "route", "add", "default", "via", f"10.{net}.0.1")
                proxy_host.run("ip", "rule", "add", "iif", cable, "ipproto", "tcp", "lookup", "100")
            proxy_host.run("ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo", "table", "100")
            proxy_host.run("sysctl", "-qw", "net.ipv4.ip_forward=1")  # so that datagrams get through
            proxy = self.start_on(proxy_host, "proxy", [PYTHON, "-c", PROXY, 5000])
            server = self.start_on(server_host, "server", [PYTHON, "-c", TALK_OVER_PROXY, "server", "10.79.0.2", 5000],
                                   True)
            for program in (proxy, server):
                program.wait_output("^listening")
            client = self.start_on(client_host, "client", [PYTHON, "-c", TALK_OVER_PROXY, "client", "10.79.0.2", 5000],
                                   True)
            for program in (client, server, proxy):
                program.wait(30)
            ends = [re.search(f"^{word} (.*)$", program.stdout, re.MULTILINE)[1]
                    for word, program in (("local", client), ("peer", server))]
            self.assertEqual(ends[0], ends[1])
            self.assertEqual(server.stats()["kernel_reasons"], {UNPROVEN: 1})
            self.assertEqual(server.stats()["engine"]["unproven"], 1)
            self.assertEqual(client.stats()["engine"]["queries_answered"], 1)
            # The end of a stream does not count as a byte.
            self.assertEqual((server.stats()["bytes.rx.kernel"], client.stats()["bytes.rx.kernel"]), (160, 167))

    def start_holders(self, here, there, count):
        """Starts clients under Sidestep, each with a stream to a server without; returns (client, port)s."""
        holders = []
        for _ in range(count):
            server, client = self.start_echo(here, there, CLIENT_ONLY)
            holders.append((client, server.wait_listening()))
        return holders

    def nids(self, host):
        return {pid: d["nid"] for pid, d in self.documents(host).items()}

    def test_any_node_answers_for_all_of_its_host(self):
        with self.hosts() as (here, there):
            holders = self.start_holders(here, there, 3)
            nids = self.nids(there)
            for client, port in holders:
                self.assertEqual(self.ask(here, there, port, client, 30),
                                 [["yes", nids[client.pid]]] * 30)
            documents = self.documents(there)
            for client, _ in holders:
                self.assertGreater(documents[client.pid]["engine"]["queries_answered"], 0)
            # Nobody holds this connection.
            client, _ = holders[0]
            self.assertEqual(self.ask(here, there, 1, client, 5), [["no", 0]] * 5)
            self.end(holders)

    def test_the_others_answer_when_one_is_killed(self):
        for victim in (0, 1):
            with self.hosts(victim=victim) as (here, there):
                holders = self.start_holders(here, there, 2)
                nids = self.nids(there)
                gone, gone_port = holders.pop(victim)
                stays, port = holders[0]
                self.assertEqual(self.ask(here, there, port, stays, 10),
                                 [["yes", nids[stays.pid]]] * 10)
                gone.process.send_signal(signal.SIGKILL)
                gone.wait(10, code=-signal.SIGKILL)
                self.assertEqual(self.ask(here, there, port, stays, 30),
                                 [["yes", nids[stays.pid]]] * 30)
                self.assertEqual(self.ask(here, there, gone_port, gone, 10), [["no", 0]] * 10)
                self.end(holders)

    def test_a_port_of_another_user_is_taken_over(self):
        with self.hosts() as (here, there):
            other = self.start_on(there, "other", [PYTHON, "-c", HOLD])
            other.wait_output("^holds$")
            holders = self.start_holders(here, there, 1)
            client, port = holders[0]
            nid = self.nids(there)[client.pid]
            other.process.send_signal(signal.SIGKILL)
            other.wait(10, code=-signal.SIGKILL)
            # The node tries to take the port once a second; a question is repeated for longer than that.
            self.assertEqual(self.ask(here, there, port, client, 5), [["yes", nid]] * 5)
            self.end(holders)

    def end(self, holders):
        """Checks that the holders' streams are unharmed, and kills their servers, which are done."""
        for client, _ in holders:
            self.finish(client)
        for program in self.programs:
            if program.running:
                program.kill()


if __name__ == "__main__":
    sidestep_harness.main()
