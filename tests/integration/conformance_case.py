"""Runs the conformance suite on the kernel and under Sidestep; the test_conformance*.py say how.

The suite runs on kernel sockets, which establishes what is right, and twice under Sidestep: once with both
directions of every connection on the engine before the first byte, and once with carriers that change at
random. The two can run side by side, as if on two hosts, because nearly all of their time passes while a case
makes sure that nothing happens.
"""

import os
import re

from network_hosts import Host
from sidestep_harness import SidestepTestCase, build_dir

LEAST_CASES = 400


class ConformanceTestCase(SidestepTestCase):
    def start_suite(self, mode, under, suites, repeat, env):
        command = [build_dir() / "conformance", "--catch_system_errors=no", "--color_output=no",
                   "--log_level=test_suite", f"--run_test={suites}"]
        if os.geteuid() == 0:
            # The nodes of one network namespace know each other, and each is supposed to be the only one.
            host = Host(1)
            self.addCleanup(host.close)
            command = host.command(*command)
        return self.start(mode, command, under,
                          env={"CONFORMANCE_FILE": str(self.directory / "kernel"), "CONFORMANCE_MODE": mode,
                               "CONFORMANCE_REPEAT": str(repeat), **env})

    def check_suite(self, suite, repeat):
        """Waits for the end of the suite, and checks that it has found nothing wrong."""
        code = suite.wait(400 + 3 * repeat, code=None)
        differences = re.findall(r".*(?:error|hangs): .*(?:\n  .*){0,2}", suite.stdout + suite.stderr)
        hang = suite.stderr.partition("hangs: ")
        # If a suite was killed or has aborted, the end of its output says why.
        last = [*suite.stdout.splitlines()[-5:], *suite.stderr.splitlines()[-20:]] if code < 0 else []
        self.assertEqual(code, 0, f"{suite.name}:\n" + "\n".join([*differences[:50], *hang[1:], *last]))

    def run_suites(self, suites="*", repeat=1, together=True, **env):
        """Runs the suites on the kernel once, and then in both modes; returns the statistics of the two by mode."""
        self.check_suite(self.start_suite("kernel", False, suites, 1, env), 1)
        programs = []
        for mode in ("engine", "switching"):
            programs.append(self.start_suite(mode, True, suites, repeat, env))
            if not together:
                self.check_suite(programs[-1], repeat)
        for program in programs if together else ():
            self.check_suite(program, repeat)
        return {program.name: program.stats() for program in programs}
