"""Tests whose programs run in the guests of a lab.

    class Pingpong(LabTestCase):
        guests = 2

        def test_something(self):
            server, client = self.lab.guests
            ...

The lab boots once per class. A test must leave no process and no shared memory in a guest, and must itself
undo what it did to the network or to a guest's files. reboot() undoes everything, and a guest that a test has
switched off boots again before the next test.
"""

import os
import pathlib
import re
import sys
import unittest
from typing import ClassVar

from lab import ROOT, Guest, Lab, LabError, interrupt_once


def build_dir() -> pathlib.Path:
    """Returns the directory of the build under test; the guests see it at the same path."""
    return pathlib.Path(os.environ.get("SIDESTEP_BUILD", ROOT / "build")).resolve()


def protocol_version() -> str:
    """Returns the version of the protocol that nodes speak to each other."""
    found = re.search(r"kProtocolVersion = (\d+);", (ROOT / "engine" / "wire" / "version.hpp").read_text())
    assert found
    return found.group(1)


class LabTestCase(unittest.TestCase):
    guests: ClassVar[int] = 2
    memory: ClassVar[str] = "2G"
    smp: ClassVar[int] = 2
    jvm_safe: ClassVar[bool] = False
    lab: ClassVar[Lab]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        Lab.require()
        cls.lab = cls.enterClassContext(Lab(cls.guests, cls.memory, cls.smp, cls.jvm_safe,
                                            visible=[build_dir()]))

    def setUp(self) -> None:
        super().setUp()
        self._first = [len(guest.processes) for guest in self.lab.guests]
        # Registered first, so it is called last, after the test's own cleanups.
        self.addCleanup(self._clean_up)

    def _clean_up(self) -> None:
        left = {}
        for guest in self.lab.guests:
            try:
                if not guest.running:
                    guest.reboot()
                elif found := guest.leftovers(settle=2):
                    left[guest.name] = found
                    guest.clean()
            except LabError:
                guest.reboot()  # for the next test
                raise
        self.assertEqual(left, {}, "left behind by the test")

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """Runs the test; if it fails, prints what its programs in the guests printed."""
        result = result or self.defaultTestResult()
        before = len(result.failures) + len(result.errors)
        super().run(result)
        if len(result.failures) + len(result.errors) > before and hasattr(self, "_first"):
            print(f"\n--- what ran in the guests during {self.id()}:", file=sys.stderr)
            for guest, first in zip(self.lab.guests, self._first, strict=True):
                print(self._report(guest, first), file=sys.stderr)
        return result

    @staticmethod
    def _report(guest: Guest, first: int) -> str:
        lines = [process.describe() for process in guest.processes[first:][-8:]]
        return "\n".join([*lines, guest.describe()])


def main() -> None:
    """Runs the calling test file; `--build DIR` gives the build tree."""
    arguments = sys.argv[1:]
    if "--build" in arguments:
        at = arguments.index("--build")
        os.environ["SIDESTEP_BUILD"] = str(pathlib.Path(arguments[at + 1]).resolve())
        del arguments[at:at + 2]
    interrupt_once()
    unittest.main(argv=[sys.argv[0], *arguments], verbosity=2)
