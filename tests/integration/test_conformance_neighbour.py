#!/usr/bin/env python3
"""The cases of the conformance suite that wait, beside another thread that sleeps.

A thread that sleeps alone waits for the doorbells itself; beside another one it sleeps differently.
"""

import sidestep_harness
from conformance_case import LEAST_CASES, ConformanceTestCase

SUITES = "cancelled,processes,lifecycle,receiving,sending,readiness,epoll,mixed"


class Neighbour(ConformanceTestCase):
    def test_threads_that_do_not_sleep_alone(self):
        for stats in self.run_suites(SUITES, CONFORMANCE_NEIGHBOUR="1").values():
            self.assertGreater(stats["streams"]["engine"], LEAST_CASES)


if __name__ == "__main__":
    sidestep_harness.main()
