#!/usr/bin/env python3
"""A connection is reset and another is made from the same port: no byte of one is delivered to the other."""

import sidestep_harness
from sidestep_harness import ALL_MODES, BOTH, FULL, KERNEL, SidestepTestCase, build_dir

ROUNDS = 1000 if FULL else 82  # with 0 to 40 ms between connection and reset, in turn
ASK_AFTER = ({}, {"SIDESTEP_ASK_AFTER": "20"})  # streams ask at once, as in other tests, or late, as by default


class Reconnect(SidestepTestCase):
    def check(self, mode, env):
        program = build_dir() / "programs/reconnect"
        server = self.start("server", [program, "server", ROUNDS], mode.server, env=env)
        client = self.start("client", [program, "client", server.wait_listening(), ROUNDS], mode.client, env=env)
        server.wait(60 + ROUNDS)
        client.wait(20)
        self.assertEqual(server.stdout.splitlines()[1:], ["every byte was at its own socket"])
        for one in (client, server):
            if mode is KERNEL or not one.under:
                self.assert_on_kernel(one)
            elif mode is BOTH:
                # The new connections have left the kernel, and none has gone back for good. On a busy machine
                # the first ones may end while the engine is still starting.
                self.assertGreater(one.engine_share(), 0.3)  # the rest came before the streams had moved
                self.assertGreaterEqual(one.stats()["streams"]["engine"], ROUNDS - 4)
                self.assertNotIn("the connection failed", one.stats()["kernel_reasons"])

    def test_the_same_port_again(self):
        for mode in ALL_MODES:
            for env in ASK_AFTER if mode is BOTH else ({},):
                with self.part(mode=mode.name, env=env):
                    self.check(mode, env)


if __name__ == "__main__":
    sidestep_harness.main()
