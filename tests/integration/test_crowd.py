#!/usr/bin/env python3
"""64 threads wait for 500 streams (1000 descriptors): no wake-up is lost, and none comes twice."""

import json
import sys

import sidestep_harness
from sidestep_harness import BOTH, FULL, KERNEL, SidestepTestCase, build_dir

THREADS, STREAMS = 64, 500
SECONDS = 30 if FULL else 1
# With few tokens, no later event makes up for a lost wake-up. With many, threads get in each other's way.
TOKENS = (2, 125)


# Runs a program under a seccomp filter that is older than futex_waitv(2) and kills the process on any call
# that it does not know; service managers install such filters.
FILTER = """
import ctypes, os, struct, sys
FUTEX_WAITV, ALLOW, KILL_PROCESS = 449, 0x7fff0000, 0x80000000
code = [(0x20, 0, 0, 0), (0x15, 0, 1, FUTEX_WAITV), (0x06, 0, 0, KILL_PROCESS), (0x06, 0, 0, ALLOW)]
steps = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in code))
program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(steps)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, program) == 0, os.strerror(ctypes.get_errno())  # PR_SET_SECCOMP
os.execv(sys.argv[1], sys.argv[1:])
"""


class Crowd(SidestepTestCase):
    def crowd(self, way, tokens, mode, *more, before=()):
        with self.part(way=way, tokens=tokens, mode=mode.name, more=more):
            program = self.start("crowd", [*before, build_dir() / "programs/crowd", way, THREADS, STREAMS,
                                           tokens, SECONDS, *more], mode.client)
            program.wait(SECONDS + 60)
            seen = json.loads(program.stdout)
            hops = seen.pop("hops")
            self.assertGreater(hops, 20 * tokens)
            self.assertEqual(seen, {"lost": 0, "doubled": 0, "wrong": 0})
            if mode is KERNEL:
                self.assert_on_kernel(program)
            elif "switching" not in more:
                self.assert_over_engine(program, tx=8 * hops, rx=8 * hops, streams=2 * STREAMS)
            return program

    def check(self, way):
        for tokens in TOKENS:
            self.crowd(way, tokens, KERNEL)
            self.crowd(way, tokens, BOTH)
            self.crowd(way, tokens, BOTH, "signals")
            switching = self.crowd(way, tokens, BOTH, "switching", "signals")
            for stats in switching.all_stats().values():
                self.assertGreater(stats["switches"]["down"], STREAMS if tokens == max(TOKENS) else tokens)

    def test_one_set_for_one_event_at_a_time(self):
        self.check("oneshot")

    def test_one_set_for_edges(self):
        self.check("edge")

    def test_streams_in_many_sets(self):
        self.check("many")

    def test_poll(self):
        self.check("poll")

    def test_a_thread_that_reads_for_each_stream(self):
        self.check("read")

    def test_a_thread_that_polls_for_each_stream(self):
        self.check("alone")

    def test_a_filter_that_is_older_than_the_way_they_sleep(self):
        for way in ("read", "alone"):
            for mode in (KERNEL, BOTH):
                self.crowd(way, min(TOKENS), mode, before=(sys.executable, "-c", FILTER))


if __name__ == "__main__":
    sidestep_harness.main()
