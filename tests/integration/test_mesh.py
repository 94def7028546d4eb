#!/usr/bin/env python3
"""Many processes of one host that connect to each other at the same time."""

import sys

import sidestep_harness
from sidestep_harness import SidestepTestCase, build_dir

COUNT = 100
PORT = 7200
SIZE = 4096
ROUNDS = 3
PAUSE = 4
MOVING = {"asking for the other end", "not asked for by the other end"}


class Mesh(SidestepTestCase):
    def run_nodes(self, under):
        nodes = [self.start(f"node {me}", [
            sys.executable, str(build_dir() / "programs" / "mesh_node.py"),
            *map(str, (me, COUNT, PORT, SIZE, ROUNDS, PAUSE))], under,
            env={"SIDESTEP_ORB_SIZE": "64K"}) for me in range(COUNT)]
        for node in nodes:
            node.wait(200)
            self.assertIn("all right", node.stdout)
        return nodes

    def test_a_hundred_nodes_all_to_all(self):
        with self.part(under=False):
            self.run_nodes(False)
        with self.part(under=True):
            every = [node.stats() for node in self.run_nodes(True)]
            for stats in every:
                # How many have moved in these seconds is a matter of the machine; none was given up.
                self.assertLessEqual(set(stats["kernel_reasons"]), MOVING)
                self.assertEqual(stats["switches.down"], 0)
                # Both begin at once in half of the cases: one connection for a pair all the same.
                self.assertLessEqual(stats["engine"]["connections_opened"], COUNT - 1)
            self.assertGreater(sum(stats["streams.engine"] for stats in every),
                               COUNT * (COUNT - 1) // 4)


if __name__ == "__main__":
    sidestep_harness.main()
