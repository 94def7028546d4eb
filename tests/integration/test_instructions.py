#!/usr/bin/env python3
"""One small send() and one small recv() take as many instructions and calls as instructions.json says.

A clock cannot show a hot path that has grown by a tenth on a machine that others use, but a count can: valgrind
counts the instructions of the program's own thread, and several runs agree to a thousandth. What a count does not
show is what the instructions cost, in caches and locked instructions for example; scripts/measure shows that.

Under valgrind there is no vDSO and no rseq(2), so a few instructions differ from those of a run outside.

The counts belong to one compiler and build type; with another, the test is skipped. A count that has grown on
purpose, or that has become less, is recorded by

    tests/integration/test_instructions.py --build build --record
"""

import collections
import json
import os
import platform
import re
import sys

import sidestep_harness
from sidestep_harness import HERE, SidestepTestCase, build_dir, preload_library

PAIRS = 10_000
RECORDED = HERE / "instructions.json"
RECORD = "SIDESTEP_TEST_RECORD"
OPERATIONS = ("send", "recv")
# Where the stream is, as the program calls it, and what the library needs for that.
PLACES = {"engine": {}, "kernel": {}, "untracked": {"SIDESTEP_ENABLE": "no"}}
# How far a count may be above the recorded one: by this share of it, and by this much.
SHARE = 0.03
SLACK = {"instructions": 5, "calls": 1}


def built_with():
    """What the counts depend on besides the source: the compilers in the library, the build type, the processor."""
    compilers = set(re.findall(rb"GCC: \([^)]*\) [\d.]+|[\w ]*clang version [\d.]+", preload_library().read_bytes()))
    cache = (build_dir() / "CMakeCache.txt").read_text(encoding="utf-8")
    kind = re.search(r"^CMAKE_BUILD_TYPE:\w+=(.*)$", cache, re.MULTILINE)
    return ", ".join([*sorted(c.decode() for c in compilers), kind.group(1) if kind else "", platform.machine()])


class Profile:
    """What the measured operations have cost, by function."""

    def __init__(self, path):
        self.instructions = {operation: collections.Counter() for operation in OPERATIONS}
        self.calls = {operation: collections.Counter() for operation in OPERATIONS}
        self._read(path)

    def _read(self, path):
        # Each function's name is followed by its callers' names, up to main, with an apostrophe between two.
        name = operation = None
        lines = iter(path.read_text(encoding="utf-8").splitlines())
        for line in lines:
            if line.startswith("fn="):
                name = line[3:].partition("'")[0]
                measured = re.search("'measured_(send|recv)'", line)
                operation = measured.group(1) if measured else None
            elif line.startswith("calls="):
                if operation:
                    self.calls[operation][name] += int(line[6:].split()[0])
                next(lines)  # what the callee has cost, which its own lines say too
            elif operation and line[:1].isdigit():
                self.instructions[operation][name] += int(line.split()[1])

    def counts(self):
        """Returns, for each operation, how many instructions and calls it takes once."""
        return {operation: {"instructions": round(self.instructions[operation].total() / PAIRS, 1),
                            "calls": round(self.calls[operation].total() / PAIRS, 1)}
                for operation in OPERATIONS}

    def table(self, operation):
        """Returns text that says how the instructions and calls spread over the functions."""
        rows = [f"  {count / PAIRS:8.1f} {self.calls[operation][name] / PAIRS:6.1f}  {name}"
                for name, count in self.instructions[operation].most_common(25)]
        return "\n".join([f"  instructions and calls made, for each {operation}():", *rows])


class Instructions(SidestepTestCase):
    def count(self, place):
        """Runs the program in valgrind and returns its profile."""
        profile = self.directory / f"{place}.profile"
        program = self.start(
            place,
            ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={profile}", "--collect-atstart=no",
             *(f"--toggle-collect=measured_{operation}" for operation in OPERATIONS),
             # Each chain of callers is kept apart, so what both operations use is told apart, too.
             "--separate-callers=100", "--compress-strings=no", "--compress-pos=no",
             build_dir() / "programs/counted", place, PAIRS],
            under=True, env=PLACES[place])
        program.wait(20)
        if place == "engine":
            for direction in ("tx", "rx"):
                self.assertGreaterEqual(program.engine_bytes(direction), 64 * PAIRS)
        else:
            self.assert_on_kernel(program)
        return Profile(profile)

    def compare(self, place, profile, recorded):
        found = profile.counts()
        for operation in OPERATIONS:
            for kind, count in found[operation].items():
                expected = recorded[place][operation][kind]
                slack = max(SLACK[kind], SHARE * expected)
                text = f"{operation}(), {place}: {count} {kind}, and {expected} are recorded"
                if count < expected - slack:
                    print(f"note: {text}. Record the gain with --record.", file=sys.stderr)
                self.assertLessEqual(count, expected + slack,
                                     f"{text} in {RECORDED.name}. If the growth is worth it, run this test with "
                                     f"--record and say why in the commit.\n{profile.table(operation)}")

    def test_the_hot_path_has_not_grown(self):
        recording = RECORD in os.environ
        recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
        if not recording and recorded.get("built_with") != built_with():
            self.skipTest(f"the counts are those of {recorded.get('built_with')}, and this is {built_with()}")
        found = {}
        for place in PLACES:
            with self.part(place=place):
                profile = self.count(place)
                found[place] = profile.counts()
                if not recording:
                    self.compare(place, profile, recorded["counts"])
        if recording and len(found) == len(PLACES):
            text = json.dumps({"built_with": built_with(), "counts": found}, indent=2)
            RECORDED.write_text(text + "\n", encoding="utf-8")
        print(json.dumps(found), file=sys.stderr)


if __name__ == "__main__":
    if "--record" in sys.argv:
        sys.argv.remove("--record")
        os.environ[RECORD] = "1"
    sidestep_harness.main()
