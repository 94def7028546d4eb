#!/usr/bin/env python3
"""Threads of several processes that sleep and wake each other while processes are stopped and killed, and threads get
signals and are cancelled: no wake-up is lost."""

import json

import sidestep_harness
from sidestep_harness import BOTH, FULL, KERNEL, SidestepTestCase, build_dir

SECONDS = 60 if FULL else 4
RUNS = ((2, 12, {}), (4, 3, {}), (2, 6, {"SIDESTEP_SPIN_US": "0"}))  # processes, streams between two of them


class Wakes(SidestepTestCase):
    def test_no_wake_up_is_lost(self):
        for seed, (processes, streams, env) in enumerate(RUNS):
            for mode in (KERNEL, BOTH) if not env else (BOTH,):
                with self.part(processes=processes, streams=streams, env=env, mode=mode.name):
                    program = self.start("wakes", [build_dir() / "programs/wakes", processes, streams, SECONDS, seed],
                                         mode.client, env=env)
                    program.wait(SECONDS + 200)
                    seen = json.loads(program.stdout)
                    for word in ("hops", "cancelled", "killed"):
                        self.assertGreater(seen.pop(word), 0, word)
                    self.assertEqual(seen, {"stuck": 0, "kernel": 0, "wrong": 0, "failed": 0})
                    if mode is KERNEL:
                        self.assert_on_kernel(program)
                    else:
                        self.check_carriers(program)

    def check_carriers(self, program):
        workers = [stats for stats in program.all_stats().values() if stats["streams"]["total"] != 0]
        self.assertGreater(len(workers), 0)
        for stats in workers:
            # Their last streams are young where a process was replaced at the end.
            self.assertGreater(stats["bytes"]["rx"]["engine"], stats["bytes"]["rx"]["kernel"])
            self.assertGreater(stats["streams"]["engine"], 0)
            # Who is stopped between what it writes and its wake-up is helped by the timer of the peer, and that is rare.
            self.assertLess(stats["engine"]["rescues"], 10)


if __name__ == "__main__":
    sidestep_harness.main()
