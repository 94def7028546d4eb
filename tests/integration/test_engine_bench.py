#!/usr/bin/env python3
"""The engine's own benchmark runs, receives what it has sent, and its nodes wake each other."""

import json

import sidestep_harness
from sidestep_harness import SidestepTestCase, build_dir


class EngineBench(SidestepTestCase):
    def measure(self, *options, spin_us):
        results = self.directory / "results.json"
        bench = self.start("engine_bench", [build_dir() / "engine_bench", "--seconds", "1",
                                            "--json", results, *options],
                           env={"SIDESTEP_SPIN_US": str(spin_us)})
        bench.wait(60)
        return json.loads(results.read_text())

    def test_every_pattern(self):
        for options in (["--pattern", "ping-pong", "--sizes", "64"],
                        ["--pattern", "both-ways", "--sizes", "64,64K"],
                        ["--pattern", "all-to-all", "--nodes", "4", "--sizes", "1K"],
                        ["--pattern", "all-to-all", "--nodes", "4", "--raw", "--sizes", "64"]):
            # Without polling, every wait is a sleep that another thread has to end.
            for spin_us in (0, 50):
                with self.part(options=" ".join(options), spin_us=spin_us):
                    for row in self.measure(*options, spin_us=spin_us):
                        self.assertGreater(row["messages_per_s"], 0, row)
                        # Each of them cost a twentieth of a second. A few come from the machine, if it stops
                        # all nodes for a moment. If nodes are not woken at all, there are twenty or more.
                        self.assertLess(row["lost_wakeups"], 10, row)


if __name__ == "__main__":
    sidestep_harness.main()
