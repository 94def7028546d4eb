#!/usr/bin/env python3
"""Programs that do I/O through libc, but wait where the library may not see it: no thread waits forever."""

import json

import sidestep_harness
from sidestep_harness import BOTH, KERNEL, SidestepTestCase, build_dir

SEEN = ("libc", "call")
UNSEEN = ("ring", "raw")


class UnseenWaiting(SidestepTestCase):
    def run_pair(self, mode, server_way, client_way):
        program = build_dir() / "programs/unseen_waiter"
        server = self.start("server", [program, server_way, "server"], mode.server)
        client = self.start("client", [program, client_way, "client", server.wait_listening()], mode.client)
        client.wait(60)
        server.wait(60)
        self.assertEqual(json.loads(client.stdout)["trips"], 300)
        self.assertEqual(json.loads(server.stdout.split("\n")[1])["trips"], 300)
        return server, client

    def test_what_is_not_seen_keeps_the_stream_on_the_kernel(self):
        for way in UNSEEN:
            for pair in ((way, way), (way, "libc"), ("libc", way)):
                for mode in (KERNEL, BOTH):
                    with self.part(pair=pair, mode=mode.name):
                        server, client = self.run_pair(mode, *pair)
                        for program in (server, client):
                            self.assert_on_kernel(program)
                        if mode is BOTH and pair[1] == way:
                            self.assertEqual(client.stats()["kernel_reasons"],
                                             {"may be waited for past the library": 1})

    def test_a_stream_that_has_moved_comes_back_when_there_is_a_ring(self):
        for pair in (("late", "late"), ("libc", "late"), ("late", "libc")):
            for mode in (KERNEL, BOTH):
                with self.part(pair=pair, mode=mode.name):
                    for program in self.run_pair(mode, *pair):
                        if mode is BOTH:
                            self.assertGreater(program.engine_bytes("tx"), 0)
                            self.assertLess(program.engine_share(), 0.9)

    def test_what_is_seen_does_not(self):
        for way in SEEN:
            with self.part(way=way):
                for program in self.run_pair(BOTH, way, way):
                    self.assert_over_engine(program, streams=1, share=0.5)


if __name__ == "__main__":
    sidestep_harness.main()
