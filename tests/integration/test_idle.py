#!/usr/bin/env python3
"""Connected JVMs that have nothing to say to each other leave the processor alone."""

import os
import re
import unittest

import sidestep_harness
from sidestep_harness import BOTH, FULL, KERNEL, SidestepTestCase, java

SECONDS = float(os.environ.get("SIDESTEP_TEST_IDLE_SECONDS", "20"))
CONNECTIONS = 8
ALLOWED_MS = 200  # more than the kernel's pair uses, for both processes together, in 20 s


class IdlePair(SidestepTestCase):
    def start_pair(self, mode, kind):
        server = self.start("server", java("Idle", "server", kind, 0, CONNECTIONS, SECONDS),
                            mode.server)
        client = self.start("client", java("Idle", "client", kind, "127.0.0.1",
                                           server.wait_listening(), CONNECTIONS, SECONDS),
                            mode.client)
        return server, client

    def check(self, kind):
        with self.part(kind=kind):
            pairs = {mode: self.start_pair(mode, kind) for mode in (KERNEL, BOTH)}
            used = {}
            for mode, (server, client) in pairs.items():
                client.wait(SECONDS + 40)
                server.wait(SECONDS + 40)
                used[mode.name] = sum(float(re.search(r"cpu_ms=([\d.]+)", p.stdout).group(1))
                                      for p in (server, client))
            self.assert_all_over_engine(*pairs[BOTH], streams=CONNECTIONS)
            self.assertLessEqual(used["both"] - used["kernel"], ALLOWED_MS * max(1, SECONDS / 20),
                                 f"CPU milliseconds in {SECONDS} s: {used}")

    def test_threads_waiting_in_read(self):
        self.check("blocking")

    @unittest.skipUnless(FULL, "SIDESTEP_FULL=1 only, to save 20 seconds")
    def test_a_thread_waiting_in_a_selector(self):
        self.check("selector")


if __name__ == "__main__":
    sidestep_harness.main()
