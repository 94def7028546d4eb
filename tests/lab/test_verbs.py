#!/usr/bin/env python3
"""Streams between two hosts, and between two processes on one host, over a real RDMA device.

The test programs themselves compare every byte. The statistics show that the engine carried bytes; how many
depends on how long a device takes to open, which is seconds under emulation and milliseconds on a real one.
"""

import contextlib
import json
import os
import re
import signal
import textwrap
import time
import unittest

import lab_case
from lab import dissect
from lab_case import LabTestCase, build_dir, protocol_version

LISTENING = "until ss --listening --tcp --numeric --no-header | grep -q :{}; do sleep 0.1; done"
PORT = 7100
ROCE_PORT = 4791
DISCOVERY_PORT = 4798
READY = "match u16 0x0500 0xffff at 34"  # in discovery datagrams: the type, after the IP and UDP headers
LONG = 120  # seconds; the test itself ends it earlier
RECONNECTS = 41  # one for each delay of 0 to 40 ms between a connection and its reset
FULL = os.environ.get("SIDESTEP_FULL") == "1"
MB = 1 << 20

# Opens a stream and sends data back and forth for the given number of seconds, or until a file says that it
# is enough; compares each piece.
TALK = textwrap.dedent("""
    import os, socket, sys, time
    role, host = sys.argv[1:3]
    def enough():
        try:
            os.unlink("/tmp/enough")
            return True
        except FileNotFoundError:
            return False
    port, seconds, words = int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
    if role == "server":
        listener = socket.create_server((host, port))
        stream, _ = listener.accept()
        while piece := stream.recv(65536):
            stream.sendall(piece)
    else:
        stream = socket.create_connection((host, port))
        until, count = time.monotonic() + seconds, 0
        while time.monotonic() < until and not enough():
            piece = b"%d " % count * words
            stream.sendall(piece)
            back = b""
            while len(back) < len(piece):
                more = stream.recv(65536)
                assert more, "the stream ended"
                back += more
            assert back == piece
            count += 1
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(1) == b""
        print("pieces", count)
""")

# Streams of many lengths, so that some end while they move; the first bytes of each give its length.
MANY_SHORT = textwrap.dedent("""
    import socket, sys, threading, time
    role, host = sys.argv[1:3]
    port, seconds = int(sys.argv[3]), float(sys.argv[4])
    STREAMS = 60
    right = []
    def serve(stream):
        total = int.from_bytes(stream.recv(8, socket.MSG_WAITALL), "big")
        found = 0
        while piece := stream.recv(65536):
            found += len(piece)
        assert found == total, (found, total)
        right.append(total)
        stream.close()
    def ask(number):
        time.sleep(seconds * number / STREAMS)
        pieces = 20 + 7 * number % 60
        stream = socket.create_connection((host, port))
        stream.sendall((pieces * 2000).to_bytes(8, "big"))
        for _ in range(pieces):
            stream.sendall(bytes(2000))
            time.sleep(0.02)
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(1) == b""
        right.append(number)
        stream.close()
    if role == "server":
        listener = socket.create_server((host, port), backlog=STREAMS)
        threads = []
        for _ in range(STREAMS):
            threads.append(threading.Thread(target=serve, args=(listener.accept()[0],)))
            threads[-1].start()
    else:
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(STREAMS)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == STREAMS, len(right)
""")

# Processes that write small pieces all the time until they kill themselves, each at a different time. Each counts in a
# file what its sends have accepted; the other end reports how much it has read, and how the stream ended.
KILLED = textwrap.dedent("""
    import mmap, os, select, signal, socket, sys, threading, time
    role, host = sys.argv[1:3]
    port, seconds = int(sys.argv[3]), float(sys.argv[4])
    WRITERS = 12
    def write(number):
        with open(f"/tmp/sent-{number}", "w+b") as file:
            file.truncate(8)
            taken = mmap.mmap(file.fileno(), 8)
        # The engine of a busy guest begins in seconds; of an idle one, in much less than one.
        until = time.monotonic() + seconds * 1.25 ** (number + 1 - WRITERS)
        stream = socket.create_connection((host, port))
        stream.sendall(bytes([number]))
        total = 0
        while time.monotonic() < until:
            total += stream.send(bytes(1000))
            taken[:] = total.to_bytes(8, "big")
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    def read(stream, lines, blocking):
        number = stream.recv(1)[0]
        stream.setblocking(blocking)
        total = 0
        while True:
            try:
                if not blocking:
                    select.select([stream], [], [])
                piece = stream.recv(65536)
                total += len(piece)
                if not piece:
                    lines.append((number, total, "end"))
                    return
            except BlockingIOError:
                pass
            except ConnectionResetError:
                lines.append((number, total, "reset"))
                return
    if role == "server":
        listener = socket.create_server((host, port), backlog=WRITERS)
        lines, threads = [], []
        for turn in range(WRITERS):
            threads.append(threading.Thread(target=read,
                                            args=(listener.accept()[0], lines, turn % 2 == 0)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        for line in lines:
            print("read", *line)
    else:
        children = []
        for number in range(WRITERS):
            pid = os.fork()
            if pid == 0:
                write(number)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
""")

# Sends datagrams that look like discovery, of every type and with random contents, and others that do not.
FORGE = textwrap.dedent("""
    import random, socket, struct, sys, time
    hosts, port = sys.argv[1:-1], int(sys.argv[-1])
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while True:
        head = struct.pack("<IHH", 0x32504453, @VERSION@, random.randrange(14))
        body = random.choice([bytes(144), random.randbytes(144), random.randbytes(20)])
        for host in hosts:
            try:
                udp.sendto(head + body, (host, port))
            except OSError:
                pass  # nobody holds the port there, now
        time.sleep(0.02)
""").replace("@VERSION@", protocol_version())

# A process that holds no end, but knows the addresses and ports of all ends between the two hosts. It asks
# for them, claims to hold them, and asks to be connected, from a given address and with a given key. It
# prints any answer that only a peer may get.
ROGUE = textwrap.dedent("""
    import hashlib, hmac, random, socket, struct, sys, time
    source, key_file, *hosts = sys.argv[1:]
    stream_port, port = int(hosts.pop()), int(hosts.pop())
    key = hashlib.sha256(open(key_file, "rb").read()).digest() if key_file != "-" else None
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((source, 0))
    udp.setblocking(False)
    def end(host, number):
        return socket.inet_pton(socket.AF_INET6, "::ffff:" + host) + struct.pack("<HH", number, 0)
    def streams():
        # An end of each is on this host.
        for line in open("/proc/net/tcp").readlines()[1:]:
            (_, own), (_, other) = (field.split(":") for field in line.split()[1:3])
            if stream_port in (int(own, 16), int(other, 16)) and line.split()[3] == "01":
                yield int(own, 16) if int(other, 16) == stream_port else int(other, 16)
    WHO_HAS, OWNER, CONNECT, ACCEPT, FAILED, YES = 1, 2, 3, 4, 8, 1
    while True:
        for number in list(streams()) or [1]:
            for tuple_ in (end(hosts[0], stream_port) + end(hosts[1], number),
                           end(hosts[1], number) + end(hosts[0], stream_port)):
                for kind in range(1, 13):
                    question = random.getrandbits(32) << 32 | random.randrange(1, 9)
                    small = random.randrange(1, 9)
                    endpoint = struct.pack("<BBBBIQIII", 2, 7, 3, 0, 64, 1 << 20, 17, 1, 4096).ljust(48, bytes(1))
                    said = {WHO_HAS: tuple_ + struct.pack("<QQI", 0, 0, small),
                            OWNER: tuple_ + struct.pack("<QQIII", 0, 0, YES, 1, small),
                            CONNECT: endpoint + struct.pack("<I", small), ACCEPT: endpoint,
                            FAILED: struct.pack("<IIIIII", 0, 1, 1, 0, 1, small)}.get(kind, b"")
                    body = struct.pack("<IHHQQQHHI", 0x32504453, @VERSION@, kind, question, 79, 0, 7, 0, 0)
                    body = (body + said).ljust(120, bytes(1))
                    body += hmac.digest(key, body, "sha256") if key else bytes(32)
                    for host in hosts:
                        try:
                            udp.sendto(body, (host, port))
                        except OSError:
                            pass  # nobody holds the port there, now
        try:
            while True:
                kind, answer = struct.unpack_from("<6xH88xI", udp.recv(2000))
                if kind == ACCEPT or (kind == OWNER and answer == YES):
                    print("told", kind, answer, flush=True)
        except OSError:
            pass
        time.sleep(0.05)
""").replace("@VERSION@", protocol_version())

# Another user, who holds the discovery port and answers each datagram with everything a node could say.
HOLD = textwrap.dedent("""
    import os, socket, struct, sys
    os.setgid(65534)
    os.setuid(65534)
    holder = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    holder.bind(("::", int(sys.argv[1])))
    while True:
        datagram, asker = holder.recvfrom(2000)
        print("asked", flush=True)
        for kind in range(14):
            # Where an answer has a word of its own, the question has another.
            said = datagram[8:96] + bytes(12) + datagram[108:] if kind == 2 else datagram[8:]
            holder.sendto(datagram[:6] + struct.pack("<H", kind) + said, asker)
""")


class VerbsTestCase(LabTestCase):
    def under(self, name, **options):
        """Returns the environment of a program under Sidestep; its statistics go to a file of that name."""
        return {"LD_PRELOAD": str(build_dir() / "libsidestep.so"),
                "SIDESTEP_STATS_FILE": f"/tmp/{name}.json", "SIDESTEP_LOG_LEVEL": "info",
                "SIDESTEP_ASK_AFTER": "0", "SIDESTEP_ALLOW_NO_KEY": "yes",
                "SIDESTEP_SPIN_US": "1000",  # emulation is ten times slower than real hardware
                **{f"SIDESTEP_{key.upper()}": str(value) for key, value in options.items()}}

    def stats(self, guest, name):
        return json.loads(guest.run(["cat", f"/tmp/{name}.json"]).output)

    def start_pair(self, here, there, connections=4, size=MB, timeout=200, **options):
        """Starts the checked transfer between two guests, or one guest and itself: (server, client).

        `timeout`: after so many seconds, the client ends itself.
        """
        pair = str(build_dir() / "programs" / "pair")
        common = ["--host", here.address, "--port", str(PORT), "--connections", str(connections),
                  "--mode", "epoll-lt"]
        server = here.start([pair, "server", *common, "--timeout", "200"], env=self.under("server", **options))
        here.run(LISTENING.format(PORT))
        client = there.start([pair, "client", *common, "--bytes", str(size),
                              "--timeout", str(timeout)],
                             env=self.under("client", **options))
        return server, client

    @staticmethod
    def ends_of(program):
        """Returns what the checked transfer reports at its end; log lines may surround it."""
        report = next(line for line in program.output().splitlines() if line.startswith('{"role"'))
        return json.loads(report)["connections"]

    def finish_pair(self, server, client, connections=4, size=MB, timeout=240):
        """Checks that both ends have received every byte."""
        for program in (client, server):
            self.assertEqual(program.wait(timeout), 0, program.output())
            ends = self.ends_of(program)
            self.assertEqual(len(ends), connections)
            for end in ends:
                for direction in ("tx", "rx"):
                    self.assertEqual((end[direction]["outcome"], end[direction]["bytes"]),
                                     ("complete", size), end)

    def start_talk(self, here, there, seconds, words=200, prefix=(), script=TALK, **options):
        """Starts one stream between two processes, for so many seconds: (server, client)."""
        there.run("rm -f /tmp/enough")  # may be left from a talk that ended otherwise
        programs = []
        for role, guest in (("server", here), ("client", there)):
            programs.append(guest.start([*prefix, "python3", "-c", script, role, here.address,
                                         str(PORT), str(seconds), str(words)],
                                        env=self.under(role, **options)))
            if role == "server":
                here.run(LISTENING.format(PORT))
        return programs

    def until_moved(self, programs, times=1):
        """Waits until each program has a stream on the engine both ways, and has moved up that often."""
        tool = str(build_dir() / "sidestep")
        def moved(program):
            stat = program.guest.run([tool, "stat", "--json", str(program.pid)], check=False)
            if stat.returncode != 0:
                return False  # the program has only just begun
            (found,) = json.loads(stat.output)
            return found["switches.up"] >= times and any(
                all(stream[way]["carrier"] == "engine" for way in ("tx", "rx"))
                for stream in found["open_streams"])
        deadline = time.monotonic() + 60
        while not all(moved(program) for program in programs):
            self.assertLess(time.monotonic(), deadline, "no stream has moved")
            time.sleep(0.2)

    def finish_talk(self, programs, after=None):
        """Waits for the programs to end. `after`: ends a TALK after that many seconds."""
        if after is not None:
            programs[-1].guest.run(f"sleep {after}; touch /tmp/enough")
        for program in reversed(programs):
            self.assertEqual(program.wait(60), 0, program.output())

    def start_reconnect(self, here, there, **options):
        """Starts connections that are reset and made again from the same port: (server, client)."""
        program = build_dir() / "programs" / "reconnect"
        server = here.start([program, "server", RECONNECTS, here.address], env=self.under("old-server", **options))
        deadline = time.monotonic() + 60
        while not (listening := re.search(r"^listening (\d+)$", server.output(), re.MULTILINE)):
            self.assertLess(time.monotonic(), deadline, server.output())
            time.sleep(0.1)
        return server, there.start([program, "client", listening[1], RECONNECTS, here.address],
                                   env=self.under("old-client", **options))

    def talk(self, *arguments, **options):
        """Does start_talk() and finish_talk()."""
        programs = self.start_talk(*arguments, **options)
        self.finish_talk(programs)
        return programs

    def resent(self):
        """Returns how often a device has noticed that a packet was missing or came twice."""
        counters = "/sys/class/infiniband/rxe0/ports/1/hw_counters"
        return sum(int(number) for guest in self.lab.guests for number in guest.run(
            f"cat {counters}/out_of_seq_request {counters}/duplicate_request").output.split())

    @contextlib.contextmanager
    def netem(self, what, udp_port=None, match=""):
        """Applies a tc-netem(8) rule to all that leaves any guest's network card, while the block runs.

        `udp_port` limits it to the datagrams of that port, and `match` limits them further (tc-u32(8)).
        """
        if udp_port is not None:
            setup = ("modprobe --all sch_netem sch_prio cls_u32 && "
                     f"tc qdisc add dev eth0 root handle 1: prio priomap{' 0' * 16} && "
                     f"tc qdisc add dev eth0 parent 1:3 netem {what}")
            for end in ("dport", "sport"):
                setup += (" && tc filter add dev eth0 protocol ip parent 1: u32 match ip protocol 17 "
                          f"0xff match ip {end} {udp_port} 0xffff {match} flowid 1:3")
        else:
            setup = f"modprobe sch_netem && tc qdisc add dev eth0 root netem {what}"
        for guest in self.lab.guests:
            guest.run(setup)
        try:
            yield
        finally:
            for guest in self.lab.guests:
                guest.run("tc qdisc del dev eth0 root")

    def assert_engine(self, stats):
        """Checks the statistics of a stream that lived long enough to move."""
        self.assertEqual(stats["streams.engine"], 1, stats)
        self.assertEqual(stats["switches.up"], 1)
        self.assertGreater(stats["bytes.rx.engine"], 0)
        self.assertEqual(stats["engine"]["connections_opened"], 1, "one queue pair for all streams")


class TwoHosts(VerbsTestCase):
    def test_every_byte_is_right_and_travels_as_roce(self):
        here, there = self.lab.guests
        with there.capture() as pcap:
            server, client = self.start_pair(here, there, size=48 * MB)
            self.finish_pair(server, client, size=48 * MB)
        for guest, name in ((here, "server"), (there, "client")):
            stats = self.stats(guest, name)
            # How many of them move before they end depends on time.
            self.assertGreater(stats["bytes.rx.engine"] + stats["bytes.tx.engine"], 0, stats)
            self.assertEqual(stats["engine"]["connections_opened"], 1,
                             "one queue pair for all streams")
            self.assertEqual(stats["switches.down"], 0)
            self.assertEqual(stats["kernel_reasons"], {})
        # Reliable connected SENDs whose last packet has immediate data (opcodes 3 and 5).
        opcodes = {packet["infiniband.bth.opcode"]
                   for packet in dissect(pcap, ["infiniband.bth.opcode"], only="infiniband.bth")}
        self.assertLessEqual({"0", "1", "3", "5"}, opcodes)
        self.assertLessEqual(opcodes, {"0", "1", "3", "5", "17"}, "nothing else but acknowledgements")

    def test_after_the_switch_nothing_is_on_tcp(self):
        here, there = self.lab.guests
        programs = self.start_talk(here, there, LONG)
        self.until_moved(programs)
        with there.capture() as pcap:
            there.run("sleep 2")
        self.finish_talk(programs, after=0)
        payload = dissect(pcap, ["tcp.len"], only=f"tcp.port == {PORT} and tcp.len > 0")
        self.assertEqual(payload, [])
        self.assertGreater(len(dissect(pcap, ["frame.number"], only="infiniband.bth")), 10)
        self.assert_engine(self.stats(there, "client"))

    def test_a_link_that_is_gone_for_longer_than_the_device_bears_loses_nothing(self):
        here, there = self.lab.guests
        server, client = self.start_pair(here, there, size=120 * MB)
        self.until_moved((server, client))
        there.run("ip link set eth0 down; sleep 20; ip link set eth0 up", timeout=90)
        self.finish_pair(server, client, size=120 * MB)
        for guest, name in ((here, "server"), (there, "client")):
            stats = self.stats(guest, name)
            self.assertGreater(stats["streams.engine"], 0, stats)

    def test_a_link_that_flaps_changes_no_byte(self):
        here, there = self.lab.guests
        programs = self.start_talk(here, there, LONG, words=12000)
        self.until_moved(programs)
        for _ in range(3):
            there.run("ip link set eth0 down; sleep 1; ip link set eth0 up; sleep 0.5")
        self.finish_talk(programs, after=4)
        for guest, name in ((here, "server"), (there, "client")):
            self.assertEqual(self.stats(guest, name)["streams.engine"], 1)

    def test_a_stream_comes_back_when_the_link_does(self):
        here, there = self.lab.guests
        # This timeout is so short that the connection does not outlive the outage.
        programs = self.start_talk(here, there, LONG, verbs_timeout=15)
        self.until_moved(programs)
        there.run("ip link set eth0 down; sleep 4; ip link set eth0 up", timeout=60)
        self.until_moved(programs, times=2)
        self.finish_talk(programs, after=1)
        for guest, name in ((here, "server"), (there, "client")):
            stats = self.stats(guest, name)
            self.assertGreaterEqual(stats["switches.up"], 2, stats)
            self.assertEqual(stats["kernel_reasons"], {})

    def test_a_device_that_is_removed_loses_nothing(self):
        here, there = self.lab.guests
        server, client = self.start_pair(here, there, size=60 * MB)
        self.until_moved((server, client))
        try:
            there.run("rdma link delete rxe0")
            self.finish_pair(server, client, size=60 * MB)
        finally:
            there.reboot()
        self.assertGreater(self.stats(here, "server")["streams.engine"], 0)

    def test_a_device_that_fails_as_a_whole_is_opened_again(self):
        here, there = self.lab.guests
        both = f"{build_dir()}/programs/libfailing_device.so:{build_dir()}/libsidestep.so"
        programs = self.start_talk(here, there, LONG, prefix=("env", f"LD_PRELOAD={both}"))
        self.until_moved(programs)
        there.run("touch /tmp/device-fails")
        self.until_moved(programs, times=2)
        self.finish_talk(programs, after=1)
        there.run("! rm /tmp/device-fails")
        self.assertIn("lost (local catastrophic error)", programs[1].output())
        for guest, name in ((here, "server"), (there, "client")):
            stats = self.stats(guest, name)
            self.assertGreaterEqual(stats["engine"]["connections_opened"], 2, stats)
            self.assertGreaterEqual(stats["switches.up"], 2, stats)
            self.assertEqual(stats["kernel_reasons"], {})

    @unittest.skipUnless(FULL, "SIDESTEP_FULL=1 only, to save two minutes")
    def test_a_host_that_dies_is_an_error_in_the_end(self):
        here, there = self.lab.guests
        programs = self.start_talk(here, there, LONG, words=12000)
        self.until_moved(programs)
        there.power_off_hard()
        self.assertNotEqual(programs[0].wait(200), 0)
        self.assertIn("ConnectionResetError", programs[0].output())

    @unittest.skipUnless(FULL, "SIDESTEP_FULL=1 only, to save a minute")
    def test_a_process_that_is_stopped_is_waited_for(self):
        here, there = self.lab.guests
        # The peer keeps writing: more than the window, the rings, and the sockets hold.
        server, client = self.start_pair(here, there, size=60 * MB)
        self.until_moved((server, client))
        server.send_signal(signal.SIGSTOP)
        there.run("sleep 50", timeout=80)
        server.send_signal(signal.SIGCONT)
        self.finish_pair(server, client, size=60 * MB)
        for guest, name in ((here, "server"), (there, "client")):
            stats = self.stats(guest, name)
            self.assertEqual(stats["switches.down"], 0, stats)

    def test_packets_that_are_lost_and_late_change_no_byte(self):
        here, there = self.lab.guests
        for what in ("loss 0.1% delay 5ms", "loss 1% delay 5ms"):
            with self.subTest(netem=what):
                before = self.resent()
                programs = self.start_talk(here, there, LONG, words=12000)
                self.until_moved(programs)
                with self.netem(what):
                    self.finish_talk(programs, after=10)
                self.assertGreater(self.resent(), before, "no packet was lost")
                for guest, name in ((here, "server"), (there, "client")):
                    stats = self.stats(guest, name)
                    self.assertEqual(stats["streams.engine"], 1, stats)

    def test_an_end_on_tcp_that_overtakes_the_device_cuts_nothing_off(self):
        here, there = self.lab.guests
        with self.netem("delay 400ms limit 20000", udp_port=ROCE_PORT):
            programs = self.start_talk(here, there, 10, script=MANY_SHORT)
            self.finish_talk(programs)
        stats = self.stats(here, "server")
        self.assertGreater(stats["streams.engine"], 5, stats)  # one way only: the clients'

    @contextlib.contextmanager
    def rogue(self, address, key_file="-"):
        """Runs a ROGUE at that address of the second guest, and checks that it learns nothing."""
        here, there = self.lab.guests
        program = there.start(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "python3", "-c", ROGUE,
                               address, key_file, here.address, there.address, str(DISCOVERY_PORT), str(PORT)])
        try:
            yield
            self.assertIsNone(program.poll(), program.output())
        finally:
            program.kill()
            program.wait()
        self.assertNotIn("told", program.output())

    @contextlib.contextmanager
    def third_address(self):
        """Gives the second guest an address at which no stream ends, like an address of another host."""
        _, there = self.lab.guests
        address = there.address.rsplit(".", 1)[0] + ".200"
        there.run(f"ip address add {address}/24 dev eth0")
        try:
            yield address
        finally:
            there.run(f"ip address del {address}/24 dev eth0")

    def test_nodes_are_met_though_datagrams_are_lost_and_repeated_and_forged(self):
        here, there = self.lab.guests
        forgers = [guest.start(["python3", "-c", FORGE, *(g.address for g in self.lab.guests),
                                str(DISCOVERY_PORT)]) for guest in self.lab.guests]
        with self.netem("loss 25% duplicate 25% delay 20ms 15ms 25%", udp_port=DISCOVERY_PORT), \
                self.third_address() as third, self.rogue(third):
            for _ in range(2):
                self.talk(here, there, 15)  # the move takes some seconds on a busy machine
                for guest, name in ((here, "server"), (there, "client")):
                    self.assert_engine(self.stats(guest, name))
        for forger in forgers:
            self.assertIsNone(forger.poll(), forger.output())
            forger.kill()
            forger.wait()

    def test_who_sends_has_joined_though_its_word_of_that_is_lost(self):
        here, there = self.lab.guests
        with self.netem("loss 100%", udp_port=DISCOVERY_PORT, match=READY):
            programs = self.start_talk(here, there, LONG)
            self.until_moved(programs)
            self.finish_talk(programs, after=8)  # longer than the 6.35 s for which a node awaits that datagram
        for guest, name in ((here, "server"), (there, "client")):
            self.assert_engine(self.stats(guest, name))

    def test_hosts_are_joined_by_their_key_and_by_default_not_without(self):
        here, there = self.lab.guests
        for keys, joined in ((("the key of both", "the key of both"), True),
                             (("one key for one", "the key of another"), False), ((None, None), False)):
            path = "/tmp/cluster.key" if keys[0] else ""
            for guest, key in zip(self.lab.guests, keys, strict=True):
                guest.run(f"umask 077; rm -f /tmp/cluster.key; echo '{key}' > /tmp/cluster.key")
            there.run("echo 'the key of nobody' > /tmp/wrong.key; install -m 644 /tmp/cluster.key /tmp/known.key")
            with self.third_address() as third, self.rogue(third, "/tmp/known.key"), \
                    self.rogue(there.address, "/tmp/wrong.key"), self.rogue(there.address):
                # Without a join, 8 s is enough: the asker gives up after 4.25 s.
                programs = self.start_talk(here, there, LONG if joined else 8, key_file=path, allow_no_key="no")
                old_and_new = self.start_reconnect(here, there, key_file=path, allow_no_key="no")
                if joined:
                    self.until_moved(programs)
                for program in old_and_new:
                    self.assertEqual(program.wait(), 0, program.output())
                self.finish_talk(programs, after=0 if joined else None)
            for program, guest, name in zip(old_and_new, (here, there), ("old-server", "old-client"), strict=True):
                stats = self.stats(guest, name)
                if joined:
                    self.assertGreater(stats["streams.engine"], 5, stats)  # others may end before they move
                else:
                    self.assertEqual(stats["streams.engine"], 0, stats)
                # One process ends before the other, which may report that.
                self.assertLessEqual(set(re.findall("is gone: (.*)", program.output())), {"the peer process ended"})
                self.assertNotIn("the connection failed", stats["kernel_reasons"])
            for guest, name in ((here, "server"), (there, "client")):
                stats = self.stats(guest, name)
                self.assertEqual(stats["streams.engine"], joined, (keys, stats))
                if joined:
                    self.assertGreater(stats["engine"]["unproven"], 0)  # right key, wrong address
                    self.assertGreater(stats["engine"]["datagrams_refused"], 0)
            reason = "no node answers on the peer's host" if path else \
                "other hosts are not joined without SIDESTEP_KEY_FILE"
            self.assertEqual(self.stats(here, "server")["kernel_reasons"], {} if joined else {reason: 1})

    def test_who_has_taken_the_port_before_the_nodes_learns_and_joins_nothing(self):
        here, there = self.lab.guests
        for guest in self.lab.guests:
            guest.run("umask 077; echo 'the key of both' > /tmp/cluster.key")
        holder = there.start(["python3", "-c", HOLD, str(DISCOVERY_PORT)])
        there.run(f"until ss --listening --udp --numeric --no-header | grep -q :{DISCOVERY_PORT}; do sleep 0.1; done")
        options = {"key_file": "/tmp/cluster.key", "allow_no_key": "no"}
        self.talk(here, there, 8, **options)
        stats = self.stats(here, "server")
        self.assertEqual(stats["streams.engine"], 0)
        self.assertEqual(stats["kernel_reasons"], {"no node answers on the peer's host": 1})
        self.assertGreater(stats["engine"]["datagrams_refused"], 0)
        self.assertEqual(self.stats(there, "client")["streams.engine"], 0)
        programs = self.start_talk(here, there, LONG, **options)
        holder.kill()
        holder.wait()
        self.assertIn("asked", holder.output())
        self.until_moved(programs)
        self.finish_talk(programs, after=0)

    def test_hosts_of_a_list_are_met_before_a_stream_needs_them(self):
        here, there = self.lab.guests
        here.run("touch /tmp/nodes")
        # The connecting end asks nobody on its own.
        programs = self.start_talk(here, here, 24, device="shm", nodes="@/tmp/nodes")
        there.run(f"echo {here.address} > /tmp/nodes")
        programs += self.start_talk(there, there, 22, nodes="@/tmp/nodes")
        found = f"a node answers on host {here.address} (SIDESTEP_NODES)"
        lost = f"no node answers on host {here.address} (SIDESTEP_NODES)"
        here.run(f"sleep 4; echo '{there.address}  # added' > /tmp/nodes; sleep 9; "
                 "echo 10.77.0.99 > /tmp/nodes")
        self.finish_talk(programs)
        self.assertIn(found, programs[2].output())
        self.assertNotIn(lost, programs[2].output())
        self.assertIn("; opened in", programs[2].output())  # although its stream stays within the host
        self.assertIn(f"a node answers on host {there.address}", programs[0].output())
        self.assertIn("no node answers on host 10.77.0.99", programs[0].output())

    def test_a_device_that_spoils_what_it_repeats_changes_no_byte(self):
        here, there = self.lab.guests
        # This timeout is so short that Soft-RoCE repeats packets that are merely late. It does that
        # incorrectly: nearly always, one work request arrives with an extra packet.
        server, client = self.start_pair(here, there, size=60 * MB, verbs_timeout=13)
        self.finish_pair(server, client, size=60 * MB)
        for guest, name in ((here, "server"), (there, "client")):
            self.assertGreater(self.stats(guest, name)["streams.engine"], 0)

    def test_a_peer_killed_while_its_stream_moves_does_not_look_like_one_that_ended(self):
        here, there = self.lab.guests
        # Moving a stream takes so long that some processes are killed during the move, and their connections
        # end first.
        with self.netem("delay 400ms limit 20000", udp_port=ROCE_PORT):
            server, _ = programs = self.start_talk(here, there, 12, script=KILLED)
            self.finish_talk(programs)
        outcomes = set()
        for line in server.output().splitlines():
            if not line.startswith("read "):
                continue
            _, number, read, how = line.split()
            sent = int.from_bytes(bytes.fromhex(
                there.run(f"od -An -tx1 /tmp/sent-{number}").output.replace(" ", "")), "big")
            outcomes.add(how)
            if how == "end":
                self.assertGreaterEqual(int(read), sent, f"writer {number} was cut off")
        self.assertIn("reset", outcomes)

    def test_a_process_that_ends_while_it_writes_breaks_nothing(self):
        here, there = self.lab.guests
        server, client = self.start_pair(here, there, size=2000 * MB, timeout=8)
        self.assertNotEqual(client.wait(60), 0)
        self.assertNotEqual(server.wait(60), 0)
        self.assertNotIn("broke the protocol", server.output() + client.output())
        self.assertGreater(self.stats(here, "server")["streams.engine"], 0)

    def test_a_killed_peer_is_an_error_and_no_hang(self):
        here, there = self.lab.guests
        server, client = self.start_pair(here, there, size=400 * MB)
        self.until_moved((server, client))
        client.kill()
        client.wait()
        self.assertNotIn(server.wait(60), (0, -9), server.output())
        for end in self.ends_of(server):
            self.assertIn(end["rx"]["outcome"], ("reset", "short_eof"), end)

    def test_without_a_device_the_streams_stay_on_the_kernel(self):
        here, there = self.lab.guests
        for options, message in (({"device": "verbs:none0"}, "no RDMA device named none0"),
                                 ({"gid_index": 200, "device": "verbs"}, "GID at the index")):
            with self.subTest(**options):
                server, client = self.talk(here, there, 5, **options)
                self.assertIn(message, server.output() + client.output())
                for guest, name in ((here, "server"), (there, "client")):
                    self.assertEqual(self.stats(guest, name)["streams.engine"], 0)


class OneHost(VerbsTestCase):
    guests = 1

    def test_two_processes_on_one_device(self):
        (guest,) = self.lab.guests
        self.talk(guest, guest, 6, device="verbs")
        for name in ("server", "client"):
            self.assert_engine(self.stats(guest, name))

    def test_a_pool_and_rings_as_small_as_they_get(self):
        (guest,) = self.lab.guests
        self.talk(guest, guest, 6, device="verbs", pool_size="1M", orb_size="64K")
        for name in ("server", "client"):
            self.assert_engine(self.stats(guest, name))

    def test_memory_that_may_not_be_pinned_is_said_and_done_without(self):
        (guest,) = self.lab.guests
        guest.run("chmod 666 /dev/infiniband/uverbs0; rm -f /tmp/*.json")
        limits = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups",
                  "--inh-caps=-all", "prlimit", "--memlock=65536"]
        server, client = self.talk(guest, guest, 4, prefix=limits, device="verbs")
        self.assertIn("RLIMIT_MEMLOCK is 64 KiB", client.output() + server.output())
        self.assertEqual(self.stats(guest, "client")["streams.engine"], 0)

    def test_a_device_without_permission_and_a_missing_library(self):
        (guest,) = self.lab.guests
        for break_it, mend_it, message in (
                ("mount --bind /dev/null /dev/infiniband/uverbs0",
                 "umount /dev/infiniband/uverbs0", "rxe0 can't be opened"),
                ("for f in /usr/lib/*/libibverbs.so.1; do mount --bind /dev/null $(realpath $f); done",
                 "for f in /usr/lib/*/libibverbs.so.1; do umount $(realpath $f); done",
                 "libibverbs.so.1")):
            with self.subTest(message):
                guest.run(break_it)
                try:
                    server, client = self.talk(guest, guest, 4, device="verbs")
                finally:
                    guest.run(mend_it)
                self.assertIn(message, server.output() + client.output())
                self.assertEqual(self.stats(guest, "client")["streams.engine"], 0)


if __name__ == "__main__":
    lab_case.main()
