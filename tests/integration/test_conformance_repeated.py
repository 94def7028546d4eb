#!/usr/bin/env python3
"""The cases of the conformance suite that fork or start programs, many times in a row."""

import sidestep_harness
from conformance_case import ConformanceTestCase
from sidestep_harness import FULL

TIMES = 1000 if FULL else 10


class Repeated(ConformanceTestCase):
    def test_forks_and_programs_many_times_in_a_row(self):
        # These cases don't wait much: side by side, they would be in each other's way.
        for stats in self.run_suites("processes,programs", TIMES, together=False).values():
            self.assertGreater(stats["streams"]["engine"], TIMES)


if __name__ == "__main__":
    sidestep_harness.main()
