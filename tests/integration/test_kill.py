#!/usr/bin/env python3
"""The survivor of a killed peer learns of it at once, and never takes a part for the whole."""

import errno
import json
import os
import random
import signal
import time

import sidestep_harness
from sidestep_harness import BOTH, CLIENT_ONLY, FULL, KERNEL, SERVER_ONLY, SidestepTestCase

ROUNDS = int(os.environ.get("SIDESTEP_TEST_KILLS", "200" if FULL else "20"))
ENDLESS = 1 << 44  # bytes; no round lasts long enough to send them all
WITHIN = 1.0       # seconds from the kill to the survivor's last error
SEED = int(os.environ.get("SIDESTEP_TEST_SEED", "0")) or int(time.time())
# The reasons why a stream that has not begun to leave the kernel is still there.
YOUNG = ("asking for the other end", "not asked for by the other end")
SHAPES = [
    ["--mode", "block", "--connections", "1"],
    ["--mode", "block", "--connections", "4"],
    ["--mode", "epoll-lt", "--connections", "8", "--threads", "2"],
    ["--mode", "epoll-et", "--connections", "4"],
    ["--mode", "poll", "--connections", "3"],
    ["--mode", "select", "--connections", "2"],
]


class KilledPeer(SidestepTestCase):
    def kill_one(self, mode, shape, rng):
        """Runs one round; returns the survivor and the time at which the other process was killed."""
        return self.kill_each(mode, shape, rng, 1)[0]

    def kill_each(self, mode, shape, rng, pairs):
        """Does the same with several pairs of processes at a time."""
        started = []
        for _ in range(pairs):
            server = self.start("server", [sidestep_harness.pair(), "server", *shape], mode.server)
            port = server.wait_listening()
            client = self.start("client", [sidestep_harness.pair(), "client", "--port", port,
                                           "--bytes", ENDLESS, *shape], mode.client)
            started.append([server, client])
        for server, client in started:
            server.wait_output("^streaming$")
            client.wait_output("^streaming$")
        survivors = []
        for programs in started:
            time.sleep(rng.random() ** 2 * 0.5 / pairs)
            victim, survivor = rng.sample(programs, 2)
            survivors.append((survivor, time.monotonic()))
            victim.process.send_signal(signal.SIGKILL)
            victim.wait(10, code=-signal.SIGKILL)
        for survivor, _ in survivors:
            survivor.wait(20, code=4)
        return survivors

    def clean_ends(self, survivor, killed, within=WITHIN):
        """Checks that all directions ended in time; returns how many connections look cleanly ended."""
        clean = 0
        report = json.loads(survivor.stdout.splitlines()[-1])
        for connection in report["connections"]:
            for direction in ("tx", "rx"):
                end = connection[direction]
                self.assertIn(end["outcome"], ("reset", "short_eof"), report)
                self.assertLess(end["bytes"], end["total"], report)
                self.assertLessEqual(end["at"] - killed, within, report)
            # A reset is reported once. A program that has learned of it from a send is told by the next recv
            # that the stream has ended, just as the kernel does for a connection that has not left it yet.
            told = connection["tx"]["errno"] == errno.ECONNRESET
            clean += connection["rx"]["outcome"] == "short_eof" and not told
        return clean

    def test_both_ends_under_sidestep(self):
        rng = random.Random(SEED)
        moved = 0
        for i in range(ROUNDS):
            shape = SHAPES[i % len(SHAPES)]
            with self.part(mode=BOTH.name, round=i, seed=SEED, shape=" ".join(shape)):
                moved += self.check_survivor(*self.kill_one(BOTH, shape, rng), WITHIN)
        self.assertGreater(moved, ROUNDS // 2, "rounds in which the engine carried the stream")

    def test_both_ends_under_sidestep_beside_others(self):
        # With no processor to spare, a process is often killed in the middle of a move.
        rng = random.Random(SEED + 2)
        pairs, rounds = 4, max(6, ROUNDS // 4)
        moved = 0
        for i in range(rounds):
            shape = ["--mode", ("block", "epoll-et")[i % 2], "--connections", "4"]
            with self.part(mode=BOTH.name, round=i, seed=SEED, shape=" ".join(shape)):
                for survivor, killed in self.kill_each(BOTH, shape, rng, pairs):
                    moved += self.check_survivor(survivor, killed, 10 * WITHIN)
        self.assertGreater(moved, rounds * pairs // 2, "pairs of which the engine carried streams")

    def check_survivor(self, survivor, killed, within):
        """Checks that no stream looks complete. Returns True if the engine has carried any of the bytes."""
        clean = self.clean_ends(survivor, killed, within)
        stats = survivor.stats()
        self.assertIsNotNone(stats, "the survivor wrote no stats file")
        if stats["bytes"]["rx"]["engine"] == 0:
            return False
        # A stream that had not begun to leave the kernel ends like a kernel stream. So does a stream that is
        # joined after its end has been read; it has no kernel reason anymore.
        young = sum(stats["kernel_reasons"].get(reason, 0) for reason in YOUNG)
        late = max(0, stats["streams.total"] - stats["streams.engine"] - sum(stats["kernel_reasons"].values()))
        self.assertLessEqual(
            clean, young + late, "the end of a killed peer's stream looks like a clean end"
        )
        return True

    def test_one_end_under_sidestep_gets_what_the_kernel_gives(self):
        rng = random.Random(SEED + 1)
        for i in range(max(6, ROUNDS // 4)):
            mode = (KERNEL, SERVER_ONLY, CLIENT_ONLY)[i % 3]
            shape = SHAPES[i % len(SHAPES)]
            with self.part(mode=mode.name, round=i, seed=SEED, shape=" ".join(shape)):
                survivor, killed = self.kill_one(mode, shape, rng)
                self.clean_ends(survivor, killed)
                self.assert_on_kernel(survivor)

    def test_a_process_killed_while_idle(self):
        for mode in (KERNEL, BOTH):
            for victim_name in ("server", "client"):
                with self.part(mode=mode.name, victim=victim_name):
                    self.check_idle(mode, victim_name)

    def check_idle(self, mode, victim_name):
        # The client sends a little and waits, and the server waits as well: both sleep when the kill comes.
        script = IDLE_PROGRAM
        server = self.start("server", [PYTHON, "-c", script, "server"], mode.server)
        port = server.wait_listening()
        client = self.start("client", [PYTHON, "-c", script, "client", port], mode.client)
        programs = {"server": server, "client": client}
        for program in programs.values():
            program.wait_output("^waiting$")
        time.sleep(0.5)
        victim = programs.pop(victim_name)
        survivor = programs.popitem()[1]
        killed = time.monotonic()
        victim.process.send_signal(signal.SIGKILL)
        victim.wait(10, code=-signal.SIGKILL)
        survivor.wait(20)
        _, outcome, at = survivor.stdout.splitlines()[-1].split()
        self.assertLessEqual(float(at) - killed, WITHIN)
        if mode is BOTH and survivor.engine_bytes("rx") > 0:
            self.assertEqual(outcome, "ECONNRESET")
        else:
            self.assertIn(outcome, ("ECONNRESET", "EOF"))


PYTHON = sidestep_harness.sys.executable
IDLE_PROGRAM = """
import errno, socket, sys, time
if sys.argv[1] == "server":
    listener = socket.create_server(("127.0.0.1", 0))
    print("listening", listener.getsockname()[1], flush=True)
    stream, _ = listener.accept()
else:
    stream = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
for _ in range(50):  # long enough for the stream to have moved
    stream.sendall(b"x" * 64)
    got = 0
    while got < 64:
        got += len(stream.recv(64 - got))
    time.sleep(0.01)
print("waiting", flush=True)
try:
    data = stream.recv(1)
    outcome = "DATA" if data else "EOF"
except OSError as error:
    outcome = errno.errorcode[error.errno]
print("end", outcome, time.monotonic())
"""


if __name__ == "__main__":
    sidestep_harness.main()
