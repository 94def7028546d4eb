#!/usr/bin/env python3
"""Unmodified programs between two hosts, over a real RDMA device.

How much of a stream the engine carries depends on how long the stream lasts. Until the devices are open, the
kernel carries the bytes: some 40 MB of them (20 MB of a JVM's), because under emulation, beside an iperf3
that takes both processors, opening takes a second or two. SIDESTEP_FULL=1 lets the programs run long enough
for 99 % and asserts that; otherwise the engine must carry the larger part of what iperf3 sends.
"""

import json
import os
import re

import lab_case
from lab_case import LabTestCase, build_dir

KEY = "/tmp/cluster.key"
FULL = os.environ.get("SIDESTEP_FULL") == "1"
SECONDS = 400 if FULL else 12
SHARE = 0.99 if FULL else 0.6
LISTENING = "until ss --listening --tcp --numeric --no-header | grep -q :{}; do sleep 0.1; done"


class ProgramsTestCase(LabTestCase):
    def under(self, name):
        return {"LD_PRELOAD": str(build_dir() / "libsidestep.so"),
                "SIDESTEP_STATS_FILE": f"/tmp/{name}.json", "SIDESTEP_LOG_LEVEL": "warn",
                "SIDESTEP_ASK_AFTER": "0", "SIDESTEP_SPIN_US": "1000",
                "SIDESTEP_KEY_FILE": KEY}

    def setUp(self):
        super().setUp()
        for guest in self.lab.guests:
            guest.run(f"umask 077; echo 'the key of this cluster' > {KEY}")

    def share(self, guest, name):
        """Returns the engine's share of all bytes that the process sent and received, and the statistics."""
        stats = json.loads(guest.run(["cat", f"/tmp/{name}.json"]).output)
        engine = stats["bytes.tx.engine"] + stats["bytes.rx.engine"]
        return engine / (engine + stats["bytes.tx.kernel"] + stats["bytes.rx.kernel"]), stats

    def assert_engine(self, least):
        for guest, name in zip(self.lab.guests, ("server", "client"), strict=True):
            share, stats = self.share(guest, name)
            print(f"{self.id()} {name}: {share:.4f}")
            self.assertGreaterEqual(share, least, stats)
            self.assertEqual(stats["engine"]["connections_opened"], 1)
            self.assertEqual(stats["switches.down"], 0)


class Iperf3(ProgramsTestCase):
    PORT = 5201

    def run_iperf3(self, *mode):
        here, there = self.lab.guests
        server = here.start(["iperf3", "--server", "--one-off"], env=self.under("server"))
        here.run(LISTENING.format(self.PORT))
        client = there.start(["iperf3", "--json", "--client", here.address, "--time", str(SECONDS),
                              *mode], env=self.under("client"))
        self.assertEqual(client.wait(SECONDS + 60), 0, client.output())
        self.assertEqual(server.wait(60), 0, server.output())
        self.assert_engine(SHARE)

    def test_one_stream(self):
        self.run_iperf3()

    def test_four_streams(self):
        self.run_iperf3("--parallel", "4")

    def test_reverse(self):
        self.run_iperf3("--reverse")

    def test_both_ways(self):
        self.run_iperf3("--bidir")


class Java(ProgramsTestCase):
    """Emulation uses one thread, because JIT-compiled code is known to crash with several."""

    jvm_safe = True
    # The single thread emulates one processor at a time, each for up to 0.1 s: a JVM that spins on one keeps
    # the device's work on the other waiting. The short form also covers a JVM on two processors.
    smp = 1 if FULL else 2
    CONNECTIONS = 8
    TOTAL = (3072 if FULL else 48) << 20
    PATIENCE = 1200 if FULL else 400  # seconds
    PORT = 7400

    def check(self, server_mode, client_mode):
        here, there = self.lab.guests
        java = ["java", "-XX:+UseSerialGC", f"-Dcheck.timeout={self.PATIENCE}", "-cp", str(build_dir() / "java"),
                "Check"]
        server = here.start([*java, "server", server_mode, str(self.PORT), str(self.CONNECTIONS)],
                            env=self.under("server"))
        here.run(LISTENING.format(self.PORT), timeout=120)
        client = there.start([*java, "client", client_mode, here.address, str(self.PORT),
                              str(self.CONNECTIONS), str(self.TOTAL), "7"], env=self.under("client"))
        for program in (client, server):
            self.assertEqual(program.wait(self.PATIENCE), 0, program.output())
            self.assertRegex(program.output(),
                             re.compile(r"^check \w+ \w+: ok, "
                                        f"{self.CONNECTIONS} connections, {self.TOTAL // 2} bytes",
                                        re.MULTILINE))
        for guest, name in ((here, "server"), (there, "client")):
            share, stats = self.share(guest, name)
            print(f"{self.id()} {name}: {share:.4f}")
            self.assertGreater(stats["streams.engine"], 0, stats)
            self.assertEqual(stats["engine"]["connections_opened"], 1)
            if FULL:
                self.assertGreaterEqual(share, SHARE, stats)

    def test_blocking_sockets(self):
        self.check("blocking", "blocking")

    def test_a_selector(self):
        self.check("selector", "selector")

    def test_asynchronous_channels(self):
        self.check("aio", "aio")


if __name__ == "__main__":
    lab_case.main()
