#!/usr/bin/env python3
"""A process of the same user that holds neither end of a connection gets none of its bytes.

The process knows what everybody can see (addresses, ports, the names of the nodes), says what a node would
say, and hands over the descriptors that it has. None of these is an end of the connection.
"""

import array
import contextlib
import mmap
import os
import pathlib
import random
import re
import select
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time

import sidestep_harness
from sidestep_harness import FULL, SidestepTestCase, protocol_version

ROUNDS = 300
SEEDS = 20 if FULL else 2
NOBODY = 65534
WITH_DEVICE = 5  # descriptors that a node has from its first connection on
SERVER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print("listening", listener.getsockname()[1], flush=True)
stream = listener.accept()[0]
while data := stream.recv(100):
    stream.sendall(data)
"""
CLIENT = """
import socket, sys, time
stream = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for turn in range(int(sys.argv[2])):
    stream.sendall(b"%06d" % turn)
    assert stream.recv(6, socket.MSG_WAITALL) == b"%06d" % turn
    time.sleep(0.005)
"""

# engine/wire/control_message.hpp
MAGIC = 0x50454453
VERSION = int(protocol_version())
SIZE = 184  # of the longest
HELLO, WHO_HAS, OWNER, CONNECT, ACCEPT, REFUSE, STATUS, STATUS_REPLY, FAILED, RELAY, LEAVE, DIRECTORY, \
    DIRECTORY_REPLY, ENTERED, FIND, FOUND, PATH, PATH_OK = range(1, 19)
NO, YES, LATER, NOT_PROVEN = range(4)


def address(port):
    return bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1]) + struct.pack("<HH", port, 0)


def message(kind, payload=b""):
    return struct.pack("<IHH", MAGIC, VERSION, kind) + payload


def hello(nid):
    return message(HELLO, struct.pack("<H", nid))


def who_has(connection, fd):
    return message(WHO_HAS, connection + struct.pack("<16x32xIIii8x", 1, 1, threading.get_native_id(), fd))


def owner(query, generation, fd):
    return message(OWNER, struct.pack("<16xQIIIIIii4x", 0x1234, query, generation, YES, 1, 1,
                                      threading.get_native_id(), fd))


USER = os.getuid()  # a child may change its own


class Names:
    """The names of the nodes: abstract socket names, or files in a folder (SIDESTEP_DIRECTORY)."""

    folder = None


def name_of(nid):
    name = f"sidestep.{VERSION}.{nid}"
    return f"{Names.folder}/{name}" if Names.folder else f"\0{name}"


def nodes():
    if Names.folder:
        names = "\n".join(f"@{name}" for name in os.listdir(Names.folder))
    else:
        names = pathlib.Path("/proc/net/unix").read_text(encoding="ascii", errors="replace")
    return sorted({int(nid) for nid in re.findall(rf"@sidestep\.{VERSION}\.(\d+)$", names, re.MULTILINE)})


def token_of(stream):
    return os.open(f"/proc/self/fd/{stream.fileno()}", os.O_PATH)


class Directory:
    """The directory of engine/control/directory.cpp, in the file that a node hands out to everybody."""

    WINDOW = 32
    WINDOWS = 8192

    def __init__(self, node):
        limit = time.monotonic() + 10
        rights = []
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(5)
            link.connect(name_of(node))
            while not rights:  # the node has first asked the liar, which does not answer
                assert time.monotonic() < limit
                link.send(message(DIRECTORY))
                _, rights, _, _ = link.recvmsg(SIZE, socket.CMSG_SPACE(4))
                time.sleep(0.01)
        file = struct.unpack("i", rights[0][2])[0]
        self.memory = mmap.mmap(file, 0)
        os.close(file)
        self.seed = struct.unpack_from("<QQ", self.memory, 16)

    def enter(self, connection, nid):
        """Enters node `nid`. `connection`: the addresses as the connecting end sees them."""
        whole = (1 << 64) - 1
        value = self.seed[0]
        for word in struct.unpack("<5Q", connection):
            value = (value ^ word) * (self.seed[1] | 1) & whole
            value ^= value >> 32
        value = value * 0xff51afd7ed558ccd & whole
        first = 4096 + 8 * self.WINDOW * (value % self.WINDOWS)
        for at in range(first, first + 8 * self.WINDOW, 8):
            if struct.unpack_from("<Q", self.memory, at)[0] == 0:
                struct.pack_into("<Q", self.memory, at, value >> 17 << 17 | nid)
                return
        raise AssertionError("no room")


def connecting_end(port):
    """Returns the addresses, as the connecting end sees them, of the one connection to that local port."""
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        with open("/proc/net/tcp", encoding="ascii") as table:
            for line in table.read().splitlines()[1:]:
                local, remote, state = line.split()[1:4]
                if int(remote.split(":")[1], 16) == port and state == "01":
                    return address(int(local.split(":")[1], 16)) + address(port)
        time.sleep(0.001)
    raise AssertionError(f"nobody connects to {port}")


class Link:
    """A link to a node from a process that claims to be node `nid`."""

    def __init__(self, to, nid):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(1)
        self.socket.connect(name_of(to))
        self.socket.send(hello(nid))

    def ask(self, connection, fd=-1, token=None):
        """Returns the answer to who_has, or None."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [token]))] if token is not None else []
        self.socket.sendmsg([who_has(connection, fd)], rights)
        try:
            while reply := self.socket.recv(SIZE):
                if struct.unpack_from("<H", reply, 6)[0] == OWNER:
                    return struct.unpack_from("<I", reply, 40)[0]
        except TimeoutError:
            pass
        return None

    def close(self):
        self.socket.close()


class Babbler:
    """Sends anything that can be said over a link or to the port, true or not."""

    MOST_LINKS = 20

    def __init__(self, seed, own_nid, connection):
        self.random = random.Random(seed)
        self.nodes = [node for node in nodes() if node != own_nid]
        self.nids = [0, own_nid, 60001, *self.nodes]
        self.connections = [connection, connection[20:] + connection[:20], bytes(40)]
        self.links = []
        self.files = [os.memfd_create("babble"), os.open("/dev/null", os.O_RDWR), os.eventfd(0)]
        os.ftruncate(self.files[0], 1 << 20)
        self.port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.port.connect(("127.0.0.1", 4798))

    def number(self, bits):
        return self.random.choice([0, 1, 2, self.random.getrandbits(bits), (1 << bits) - 1])

    def datagram(self):
        kind = self.random.choice(range(14))
        head = struct.pack("<IHHQQQHHI", 0x32504453, VERSION, kind, self.number(64), self.number(64),
                           self.random.choice([0, self.number(64)]),
                           *(self.random.choice(self.nids) for _ in range(2)), 0)
        if kind in (1, 2):  # who_has, owner
            said = self.connection() + self.counts() + struct.pack("<III", self.random.choice([0, 1, 2, self.number(32)]),
                                                                   self.number(32), self.number(32))
        elif kind == 8:  # failed
            said = struct.pack("<IIIIIIQQI", *(self.number(32) for _ in range(2)), self.random.randrange(4), 0,
                               *(self.number(32) for _ in range(2)), *(self.number(64) for _ in range(2)),
                               self.number(32))
        else:
            said = self.endpoint() + struct.pack("<I", self.number(32))
        return (head + said).ljust(120, bytes(1)) + bytes(32)

    def connection(self):
        return self.random.choice(self.connections)

    def counts(self):
        return struct.pack("<QQ", self.number(64), self.number(64))

    def endpoint(self):
        return self.random.choice([bytes(48), self.random.randbytes(48)])

    def held_at(self):
        return struct.pack("<ii", threading.get_native_id(), self.random.choice([-1, self.random.choice(self.files)]))

    def payload(self, kind):
        """Returns what a message of that kind may say; most numbers are small, so that some are right."""
        two = struct.pack("<II", self.number(32), self.number(32))
        lane = struct.pack("<H", self.random.choice([*range(6), self.number(16)]))
        asker = self.random.choice([bytes(32), self.random.randbytes(32)])
        ips = [address(1)[:16], self.random.randbytes(16)]
        return {
            HELLO: struct.pack("<H", self.random.choice(self.nids)),
            WHO_HAS: self.connection() + self.counts() + asker + two + self.held_at()
                     + struct.pack("<HH4x", self.number(16), self.random.randrange(2)),
            OWNER: self.counts() + self.number(64).to_bytes(8, "little") + two
                   + struct.pack("<III", self.random.randrange(5), self.number(32), self.number(32)) + self.held_at()
                   + bytes(4),
            CONNECT: self.endpoint() + lane + bytes(6),
            ACCEPT: self.endpoint() + lane + bytes(6),
            REFUSE: lane,
            FAILED: lane,
            RELAY: self.datagram() + self.random.choice(ips) + self.random.randbytes(8),
            ENTERED: self.connection(),
            FIND: self.connection() + two,
            FOUND: two + struct.pack("<8H", *(self.random.choice(self.nids) for _ in range(8))),
            PATH: self.number(64).to_bytes(8, "little") + self.random.choice(ips) + self.random.choice(ips),
            PATH_OK: self.number(64).to_bytes(8, "little") + self.random.choice(ips) + self.random.choice(ips),
        }.get(kind, b"")

    def say(self):
        if len(self.links) < self.MOST_LINKS:
            try:
                link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.links.append(link)
                link.setblocking(False)
                link.connect(name_of(self.random.choice(self.nodes)))
                if self.random.random() < 0.8:
                    link.send(hello(self.random.choice(self.nids)))
            except OSError:
                self.links.remove(link)
                link.close()
                return
        link = self.random.choice(self.links)
        # A message of another size or kind ends the link, so there are few of them.
        odd = self.random.random()
        kind = self.random.choice([0, 19, 20, 0xffff]) if odd < 0.02 else self.random.randrange(HELLO, PATH_OK + 1)
        said = message(kind, self.payload(kind))
        if odd > 0.97:
            said = self.random.choice([said[:-1], said[:7], said + b"?", said.ljust(SIZE + 1, b"?")])
        files = self.random.sample(self.files, self.random.randrange(3))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        try:
            link.sendmsg([said], rights)
            while (reply := socket.recv_fds(link, SIZE, 2))[0]:
                for file in reply[1]:
                    os.close(file)
            raise BrokenPipeError  # the link was closed
        except BlockingIOError:
            pass
        except OSError:
            self.links.remove(link)
            link.close()
        try:
            self.port.send(self.datagram())
        except OSError:
            pass

    def close(self):
        for one in (*self.links, self.port):
            one.close()
        for file in self.files:
            os.close(file)


def descriptors(program):
    return len(os.listdir(f"/proc/{program.pid}/fd"))


def memory(program):
    """Returns the process's resident anonymous memory, in KiB."""
    return int(re.search(r"RssAnon:\s+(\d+)", pathlib.Path(f"/proc/{program.pid}/status").read_text())[1])


class Liar(threading.Thread):
    """A node that says yes to every question, with what it has, and accepts connections uselessly."""

    def __init__(self, nid, has):
        super().__init__()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(name_of(nid))
        self.listener.listen(100)
        self.nid = nid
        self.has = has
        self.asked = []
        self.ending, self.end = os.pipe()

    def run(self):
        links = []
        while True:
            ready, _, _ = select.select([self.ending, self.listener, *links], [], [])
            if self.ending in ready:
                break
            for one in ready:
                if one is self.listener:
                    links.append(one.accept()[0])
                    continue
                try:
                    said = one.recv(SIZE)
                except OSError:
                    said = b""
                if not said:
                    links.remove(one)
                    one.close()
                    continue
                kind, = struct.unpack_from("<H", said, 6)
                self.asked.append(kind)
                if kind == WHO_HAS:
                    query, generation = struct.unpack_from("<II", said, 8 + 88)
                    token = token_of(self.has)
                    one.sendmsg([owner(query, generation, self.has.fileno())],
                                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [token]))])
                    os.close(token)
                elif kind == CONNECT:
                    files = os.memfd_create("nothing"), os.eventfd(0)
                    socket.send_fds(one, [message(ACCEPT, bytes(56))], files)
                    for file in files:
                        os.close(file)
        for one in (self.listener, *links):
            one.close()
        if Names.folder:
            os.unlink(name_of(self.nid))

    def stop(self):
        os.close(self.end)
        self.join()
        os.close(self.ending)


class Stranger(SidestepTestCase):
    environment = {"SIDESTEP_ALLOW_NO_KEY": "yes"}  # so that nodes listen to everybody

    def setUp(self):
        super().setUp()
        # A stranger has a connection of its own.
        listener = socket.create_server(("127.0.0.1", 0))
        self.own = socket.create_connection(listener.getsockname()), listener.accept()[0]
        for one in (listener, *self.own):
            self.addCleanup(one.close)

    def client(self, port, rounds=ROUNDS, **env):
        return self.start("client", [sys.executable, "-c", CLIENT, port, rounds], True, env=env)

    def server(self):
        return self.start("server", [sys.executable, "-c", SERVER], True, env={"SIDESTEP_ASK_AFTER": "1500"})

    def lie(self, liar, port):
        """Enters the liar as a possible holder of the other end, before the server looks for one."""
        connection = connecting_end(port)
        self.await_nodes(2)  # the server may be about to accept it
        nodes_of_others = [node for node in nodes() if node != liar.nid]
        Directory(nodes_of_others[0]).enter(connection, liar.nid)

    def test_nobody_is_told_of_a_stream_whose_end_it_does_not_hold(self):
        with self.part():
            listener = socket.create_server(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            client = self.client(port)
            stream, (_, client_port) = listener.accept()
            with listener, stream:
                stream.sendall(stream.recv(6))
                (node,) = nodes()
                wanted = address(client_port) + address(port)
                liar = Liar(1 if node != 1 else 2, self.own[0])
                liar.start()
                try:
                    link = Link(node, liar.nid)
                    self.assertEqual(link.ask(wanted), NOT_PROVEN)
                    own = self.own[0]
                    token = token_of(own)
                    self.assertEqual(link.ask(wanted, own.fileno(), token), NOT_PROVEN)
                    os.close(token)
                    # This process does hold the end, but not in the socket whose number it gives.
                    token = token_of(stream)
                    self.assertEqual(link.ask(wanted, own.fileno(), token), NOT_PROVEN)
                    # The holder of the end gets an answer.
                    self.assertEqual(link.ask(wanted, stream.fileno(), token), YES)
                    os.close(token)
                    link.close()
                    # A link under a name that is somebody else's, or nobody's, gets no answer at all.
                    for other in (node, 60001):
                        link = Link(node, other)
                        self.assertIsNone(link.ask(wanted, stream.fileno()))
                        link.close()
                finally:
                    liar.stop()
                while data := stream.recv(100):
                    stream.sendall(data)
            client.wait(60)
            stats = client.stats()
            self.assertEqual(stats["streams.engine"], 0)
            self.assertGreaterEqual(stats["engine"]["unproven"], 5)

    def test_nobody_is_believed_to_hold_an_end_that_it_does_not_hold(self):
        with self.part():
            liar = Liar(60000, self.own[0])
            liar.start()
            try:
                server = self.server()
                port = server.wait_listening()
                client = self.start("client", [sys.executable, "-c", CLIENT, port, 2 * ROUNDS])
                self.lie(liar, port)
                for program in (client, server):
                    program.wait(60)
            finally:
                liar.stop()
            stats = server.stats()
            self.assertEqual(stats["streams.engine"], 0)
            self.assertGreater(stats["engine"]["unproven"], 0)
            self.assertIn(WHO_HAS, liar.asked)
            self.assertNotIn(CONNECT, liar.asked)

    def test_a_liar_keeps_no_stream_from_its_peer(self):
        with self.part():
            liar = Liar(60000, self.own[0])
            liar.start()
            try:
                server = self.server()
                port = server.wait_listening()
                client = self.client(port)
                self.lie(liar, port)
                for program in (client, server):
                    program.wait(60)
            finally:
                liar.stop()
            self.assert_all_over_engine(client, server, streams=1)
            self.assertIn(WHO_HAS, liar.asked)
            self.assertNotIn(CONNECT, liar.asked)

    def test_who_accepts_a_connection_that_is_of_no_use_hears_of_it(self):
        """Otherwise it would send, and wait for reports about its streams."""
        with self.part():
            server = self.server()
            port = server.wait_listening()
            with socket.create_connection(("127.0.0.1", port)) as stream:
                liar = Liar(60000, stream)
                liar.start()
                try:
                    self.lie(liar, port)
                    limit = time.monotonic() + 20
                    while FAILED not in liar.asked and time.monotonic() < limit:
                        stream.sendall(b"123456")
                        self.assertEqual(stream.recv(6, socket.MSG_WAITALL), b"123456")
                        time.sleep(0.005)
                finally:
                    liar.stop()
                stream.sendall(b"at end")
                self.assertEqual(stream.recv(6, socket.MSG_WAITALL), b"at end")
            server.wait(60)
            self.assertIn(CONNECT, liar.asked)
            self.assertIn(FAILED, liar.asked)
            self.assertEqual(server.stats()["streams.engine"], 0)

    def test_who_asks_and_does_not_read_takes_few_descriptors(self):
        with self.part():
            server = self.start("server", [sys.executable, "-c", SERVER], True)
            client = self.client(server.wait_listening(), 600)
            with contextlib.ExitStack() as links:
                self.await_nodes(2)
                time.sleep(0.3)
                before = [descriptors(one) for one in (client, server)]
                for _ in range(50):
                    for node in nodes():
                        link = links.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                        link.settimeout(0.2)
                        try:
                            link.connect(name_of(node))
                            for _ in range(200):
                                link.send(message(DIRECTORY))
                                link.send(message(STATUS))
                        except OSError:
                            pass  # the node does not listen anymore, or has closed the link
                for one, its in zip((client, server), before):
                    self.assertLessEqual(descriptors(one), its + 8 * (1 + 4))
            for program in (client, server):
                program.wait(60)
            self.assert_all_over_engine(client, server, streams=1)

    def await_nodes(self, count):
        limit = time.monotonic() + 10
        while len(nodes()) < count:
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.01)

    def babble(self, seed, nid, connection, user):
        """Babbles for a while; another user does so in a process of its own."""
        def talk():
            babbler = Babbler(seed, nid, connection)
            with contextlib.closing(babbler):
                limit = time.monotonic() + 3
                while time.monotonic() < limit:
                    babbler.say()
        if user == USER:
            return talk()
        child = os.fork()
        if child == 0:
            try:
                os.setuid(user)
                talk()
                os._exit(0)
            finally:
                os._exit(1)
        return self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_who_says_anything_at_all_ends_no_stream(self):
        cases = [(seed, USER, "") for seed in range(SEEDS)]
        # An untrusted user can talk only to the port; a trusted one can also talk to the nodes.
        if USER == 0:
            cases += [(seed, NOBODY, trust) for seed in range(SEEDS) for trust in ("", str(NOBODY))]
        for seed, user, trust in cases:
            with self.part(seed=seed, user=user, trust=trust):
                liar = Liar(60000, self.own[0])
                liar.start()
                env = {"SIDESTEP_TRUST": trust}
                server = self.start("server", [sys.executable, "-c", SERVER], True, env=env)
                port = server.wait_listening()
                client = self.client(port, 1000, **env)
                connection = connecting_end(port)
                time.sleep(0.5)
                before = [(descriptors(one), memory(one)) for one in (client, server)]
                try:
                    self.babble(seed, liar.nid, connection, user)
                finally:
                    liar.stop()
                time.sleep(0.5)
                for one, (its_descriptors, its_memory) in zip((client, server), before):
                    # Anybody with a name may make a connection over a link; the node keeps in reserve what
                    # that leaves behind.
                    self.assertLessEqual(descriptors(one), its_descriptors + WITH_DEVICE + 4)
                    self.assertLess(memory(one), its_memory + 16 * 1024)
                for program in (client, server):
                    program.wait(60)
                self.assert_all_over_engine(client, server, streams=1)


class StrangerInFolder(Stranger):
    """A stranger that sees the folder of the containers, as all containers do."""

    def setUp(self):
        super().setUp()
        # Short enough for the address of a socket, and writable by everybody.
        Names.folder = tempfile.mkdtemp(prefix="sidestep-test-")
        os.chmod(Names.folder, 0o1777)
        self.environment = {**self.environment, "SIDESTEP_DIRECTORY": Names.folder}

    def tearDown(self):
        super().tearDown()
        shutil.rmtree(Names.folder)
        Names.folder = None


if __name__ == "__main__":
    sidestep_harness.main()
