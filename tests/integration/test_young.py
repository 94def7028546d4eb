#!/usr/bin/env python3
"""Streams that end young, with every way to wait: no wake-up is lost while they leave the kernel."""

import json
import subprocess

import sidestep_harness
from sidestep_harness import ALL_MODES, BOTH, FULL, KERNEL, SidestepTestCase, build_dir

WAYS = ("recv", "timed", "poll", "select", "level", "edge", "oneshot", "told", "interest")
SECONDS = 60 if FULL else 2


class Young(SidestepTestCase):
    def check(self, way, mode):
        program = build_dir() / "programs/young"
        server = self.start("server", [program, way, "server"], mode.server, stdin=subprocess.PIPE)
        seconds = SECONDS if mode is BOTH else 1
        client = self.start("client", [program, way, "client", server.wait_listening(), seconds], mode.client)
        client.wait(seconds + 60)
        server.process.stdin.close()
        server.wait(10)
        self.assertGreater(json.loads(client.stdout)["streams"], 20)
        for one in (client, server):
            if mode is BOTH:
                self.assertGreater(one.engine_share(), 0.3)  # the rest came before the streams had moved
            elif mode is KERNEL or not one.under:
                self.assert_on_kernel(one)
            else:
                self.assertEqual(one.engine_bytes("tx"), 0)

    def test_every_way_to_wait(self):
        for way in WAYS:
            for mode in ALL_MODES if way in ("recv", "told") else (KERNEL, BOTH):
                with self.part(way=way, mode=mode.name):
                    self.check(way, mode)


if __name__ == "__main__":
    sidestep_harness.main()
