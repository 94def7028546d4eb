#!/usr/bin/env python3
"""A byte whose send() has returned is there for its receiver, however many threads are involved."""

import json

import sidestep_harness
from sidestep_harness import BOTH, FULL, KERNEL, SidestepTestCase, build_dir

WAYS = ("recv", "timed", "poll", "select", "epoll", "peek", "queued")
SECONDS = 20 if FULL else 1


class Sent(SidestepTestCase):
    def check(self, way, threads, mode, *more, env=None):
        with self.part(way=way, threads=threads, mode=mode.name, more=more):
            program = self.start("sent", [build_dir() / "programs/sent", way, threads, SECONDS, *more], mode.client,
                                 env=env or {})
            program.wait(SECONDS + 60)
            seen = json.loads(program.stdout)
            self.assertGreater(seen.pop("sends"), threads)
            self.assertEqual(seen, {"missed": 0, "latest_us": 0})
            return program

    def check_all(self, *more):
        for way in WAYS:
            for threads in (1, 4, 32):
                if threads == 4:
                    self.assert_on_kernel(self.check(way, threads, KERNEL, *more))
                # The first bytes come before the streams have moved, which takes longest when most streams
                # wait for it.
                self.assertGreater(self.check(way, threads, BOTH, *more).engine_share(), 0.5)

    def test_in_one_process(self):
        self.check_all()

    def test_in_two_processes(self):
        self.check_all("two")

    def test_while_the_streams_move(self):
        # Other threads ask the kernel about the streams then, and it sets aside what arrives meanwhile.
        for _ in range(5):
            for way in ("poll", "select", "epoll"):
                self.check(way, 48, BOTH, "anew", env={"SIDESTEP_ASK_AFTER": "0"})

    def test_many_threads_that_wait_with_a_limit(self):
        # A thread that waits for a lock behind threads that take it again and again never gets its turn.
        self.check("timed", 200, BOTH)


if __name__ == "__main__":
    sidestep_harness.main()
