#!/usr/bin/env python3
"""What a program sees of its sockets is what it would see of the kernel's: the conformance suite.

The suite runs on kernel sockets, which establishes what is right, and twice under Sidestep: once with both
directions of every connection on the engine before the first byte, and once with carriers that change at
random. `test_conformance.py --table FILE`, with what the kernel's run wrote, prints the
table of tests/README.md.
"""

import collections
import json
import re
import sys

import sidestep_harness
from sidestep_harness import FULL, ROOT, SidestepTestCase, build_dir

LEAST_CASES = 400
TIMES = 1000 if FULL else 10
TABLE = ROOT / "tests" / "README.md"
BEGIN, END = "<!-- conformance -->", "<!-- /conformance -->"


def table(names):
    """Returns the numbers of cases by call, as Markdown: "receiving.recv.peek" counts for recv."""
    counts = collections.Counter()
    for name in names:
        suite, call, *rest = name.split(".")
        counts[suite, call if rest else "(more)"] += 1
    lines = ["| | call | cases |", "| --- | --- | --- |"]
    lines += [f"| {suite} | {call} | {count} |" for (suite, call), count in sorted(counts.items())]
    return "\n".join([*lines, f"| | all | {sum(counts.values())} |"])


class Conformance(SidestepTestCase):
    def run_suite(self, mode, under, suites="*", repeat=1, **env):
        """Runs the suite, checks that it found nothing wrong, and returns its process."""
        suite = self.start(mode, [build_dir() / "conformance", "--catch_system_errors=no",
                                  "--color_output=no", "--log_level=test_suite", f"--run_test={suites}"], under,
                           env={"CONFORMANCE_FILE": str(self.directory / "kernel"),
                                "CONFORMANCE_MODE": mode, "CONFORMANCE_REPEAT": str(repeat), **env})
        code = suite.wait(400 + 3 * repeat, code=None)
        differences = re.findall(r".*(?:error|hangs): .*(?:\n  .*){0,2}", suite.stdout + suite.stderr)
        hang = suite.stderr.partition("hangs: ")
        self.assertEqual(code, 0, "\n".join([*differences[:50], *hang[1:]]))
        return suite

    def test_what_a_program_sees_does_not_depend_on_the_carrier(self):
        self.run_suite("kernel", under=False)
        cases = json.loads((self.directory / "kernel").read_text())
        self.assertGreaterEqual(len(cases), LEAST_CASES)

        stats = self.run_suite("engine", under=True).stats()
        connections = stats["streams"]["engine"]
        self.assertGreater(connections, len(cases))  # two ends each, and most cases have a pair
        self.assertGreater(stats["bytes"]["tx"]["engine"], 9 * stats["bytes"]["tx"]["kernel"])

        stats = self.run_suite("switching", under=True).stats()
        self.assertGreater(stats["switches"]["down"], len(cases))
        self.assertGreater(stats["bytes"]["tx"]["engine"], 0)
        self.assertGreater(stats["bytes"]["tx"]["kernel"], 0)

        written = TABLE.read_text()
        self.assertIn(table(cases), written[written.index(BEGIN):written.index(END)],
                      "the table is old: test_conformance.py --table FILE")

    def test_threads_that_do_not_sleep_alone(self):
        # A thread that sleeps alone waits for the doorbells itself; beside another one it sleeps differently.
        suites = "cancelled,processes,lifecycle,receiving,sending,readiness,epoll,mixed"
        self.run_suite("kernel", under=False, suites=suites, CONFORMANCE_NEIGHBOUR="1")
        for mode in ("engine", "switching"):
            stats = self.run_suite(mode, under=True, suites=suites, CONFORMANCE_NEIGHBOUR="1").stats()
            self.assertGreater(stats["streams"]["engine"], LEAST_CASES)

    def test_forks_and_programs_many_times_in_a_row(self):
        suites = "processes,programs"
        self.run_suite("kernel", under=False, suites=suites)
        for mode in ("engine", "switching"):
            stats = self.run_suite(mode, under=True, suites=suites, repeat=TIMES).stats()
            self.assertGreater(stats["streams"]["engine"], TIMES)


def main():
    if "--table" in sys.argv:
        with open(sys.argv[sys.argv.index("--table") + 1], encoding="utf-8") as file:
            print(table(json.load(file)))
        return
    sidestep_harness.main()


if __name__ == "__main__":
    main()
