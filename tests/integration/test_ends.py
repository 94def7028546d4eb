#!/usr/bin/env python3
"""What a program sees of its streams when the process at the other end has ended.

The survivor has one stream for each way of looking: a blocking call, poll, epoll, a half that is already
shut. Its peer ends in one of the ways in which processes end, except by a signal, which test_kill.py covers.
The transcripts must equal the kernel's, down to the events of poll() and the results of later calls.
"""

import subprocess
import sys
import time

import sidestep_harness
from sidestep_harness import BOTH, KERNEL, SidestepTestCase

WAYS = {"close": 0, "exit": 0, "_exit": 0, "shutdown": 0, "exec": 0, "unread": 0, "exception": 1}


class Ends(SidestepTestCase):
    def see(self, way, accepts, mode):
        """Returns the lines that the survivor prints."""
        script = sidestep_harness.build_dir() / "programs" / "peer_that_ends.py"
        programs = {}
        port = 0
        for name in ("survives", "ends") if accepts else ("ends", "survives"):
            programs[name] = self.start(name, [sys.executable, script, name, way, port], mode.both,
                                        stdin=subprocess.PIPE)
            port = port or programs[name].wait_listening()
        survivor, ender = programs["survives"], programs["ends"]
        survivor.wait_output("^waiting$")

        def tell(program):
            program.process.stdin.write(b"\n")
            program.process.stdin.flush()

        tell(survivor)
        if way == "close":
            ender.wait_output("^closed$")
        else:
            ender.wait(30, code=WAYS[way])
        time.sleep(1)  # by then everybody knows
        tell(survivor)
        survivor.wait(60)
        if way == "close":
            tell(ender)
            ender.wait(30)
        for program in programs.values():
            program.process.stdin.close()
        return survivor.stdout[survivor.stdout.index("waiting") :].splitlines()[1:]

    def test_the_end_of_a_process_looks_as_it_does_on_the_kernel(self):
        for way in WAYS:
            for accepts in (True, False):
                with self.part(way=way, accepts=accepts):
                    kernel = self.see(way, accepts, KERNEL)
                    self.assertEqual(self.see(way, accepts, BOTH), kernel)
                    survivor = next(p for p in reversed(self.programs) if p.name == "survives")
                    self.assertGreaterEqual(survivor.engine_bytes("rx"), 50000)


if __name__ == "__main__":
    sidestep_harness.main()
