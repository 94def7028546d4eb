#!/usr/bin/env python3
"""What a program sees of its sockets is what it would see of the kernel's: all cases of the conformance suite.

`test_conformance.py --table FILE`, with what the kernel's run wrote, prints the table of tests/README.md.
"""

import collections
import json
import sys

import sidestep_harness
from conformance_case import LEAST_CASES, ConformanceTestCase
from sidestep_harness import ROOT

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


class Conformance(ConformanceTestCase):
    def test_what_a_program_sees_does_not_depend_on_the_carrier(self):
        stats = self.run_suites()
        cases = json.loads((self.directory / "kernel").read_text())
        self.assertGreaterEqual(len(cases), LEAST_CASES)

        engine = stats["engine"]
        self.assertGreater(engine["streams"]["engine"], len(cases))  # two ends each, and most cases have a pair
        self.assertGreater(engine["bytes"]["tx"]["engine"], 9 * engine["bytes"]["tx"]["kernel"])

        switching = stats["switching"]
        self.assertGreater(switching["switches"]["down"], len(cases))
        self.assertGreater(switching["bytes"]["tx"]["engine"], 0)
        self.assertGreater(switching["bytes"]["tx"]["kernel"], 0)

        written = TABLE.read_text()
        self.assertIn(table(cases), written[written.index(BEGIN):written.index(END)],
                      "the table is old: test_conformance.py --table FILE")


def main():
    if "--table" in sys.argv:
        with open(sys.argv[sys.argv.index("--table") + 1], encoding="utf-8") as file:
            print(table(json.load(file)))
        return
    sidestep_harness.main()


if __name__ == "__main__":
    main()
