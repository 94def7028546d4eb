#!/usr/bin/env python3
"""A program that has run out of address space goes on, and nothing in the library ends it."""

import json

import sidestep_harness
from sidestep_harness import BOTH, KERNEL, SidestepTestCase, build_dir

DUPLICATES = 15000


class NoMemory(SidestepTestCase):
    def test_streams_and_their_descriptors(self):
        for mode in (KERNEL, BOTH):
            with self.part(mode=mode.name):
                program = self.start("program", [build_dir() / "programs/no_memory", DUPLICATES], mode.client)
                program.wait(60)
                self.assertEqual(json.loads(program.stdout),
                                 {"duplicates": DUPLICATES, "echoes": 6000, "more": 200, "members": 200})
                if mode is BOTH:
                    self.assertGreater(program.engine_share(), 0.5)


if __name__ == "__main__":
    sidestep_harness.main()
