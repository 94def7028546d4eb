#!/usr/bin/env python3
"""Every function that libc exports is either interposed or listed with the reason why it need not be.

A name that nobody has thought of is a way past the library: a second name of a call (`__read`), or a call
that a newer libc adds.
"""

import collections
import os
import pathlib
import re
import subprocess
import sys
import unittest

import sidestep_harness
from sidestep_harness import ROOT, build_dir

CALLS = ROOT / "preload" / "calls.def"
LIST = ROOT / "preload" / "not_interposed.txt"
NOT_YET = "open"


def libc_path():
    """Returns the path of this process's libc."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            if re.search(r"/libc(\.so\.6|-[\d.]+\.so)$", line.strip()):
                return pathlib.Path(line.split()[-1])
    raise unittest.SkipTest("this Python has no glibc")


def functions(library):
    """Returns the functions that a library exports to programs: a map from each name to its addresses."""
    found = collections.defaultdict(set)
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, text=True, stdout=subprocess.PIPE,
                             timeout=60).stdout
    for line in listing.splitlines():
        address, kind, name = line.split()
        # Symbols of this version are for glibc's own libraries.
        if kind in "TWi" and "GLIBC_PRIVATE" not in name:
            found[name.partition("@")[0]].add(address)
    return found


def interposed():
    return set(re.findall(r"^CALL\([^,]*, (\w+),", CALLS.read_text(), re.MULTILINE))


class Names(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.libc = functions(libc_path())
        cls.calls = interposed()
        lines = [line for line in LIST.read_text().splitlines() if not line.startswith("#")]
        cls.version = lines.pop(0)
        cls.listed = dict(line.split() for line in lines)
        cls.assertEqual(cls(), len(cls.listed), len(lines), "a name is listed twice")
        cls.reasons = set(re.findall(r"^# (\w+) {2,}", LIST.read_text(), re.MULTILINE)) | {NOT_YET}

    def here(self):
        return f"libc here is {os.confstr('CS_GNU_LIBC_VERSION')}, the list was made for {self.version}"

    def test_each_name_of_libc_is_interposed_or_has_a_reason(self):
        unknown = sorted(set(self.libc) - self.calls - set(self.listed))
        self.assertEqual(unknown, [], f"{self.here()}: these belong in calls.def, or in the list with a reason")

    def test_no_name_has_a_reason_and_is_interposed(self):
        both = {name for name in self.calls & set(self.listed) if self.listed[name] != NOT_YET}
        self.assertEqual(sorted(both), [], "delete their lines from the list")

    def test_the_reasons_are_explained(self):
        self.assertEqual(set(self.listed.values()) - self.reasons, set())

    def test_second_names_are_interposed_like_the_first(self):
        names = collections.defaultdict(set)
        for name, addresses in self.libc.items():
            for address in addresses:
                names[address].add(name)
        missing = {name: sorted(same & self.calls) for same in names.values() if same & self.calls
                   for name in same - self.calls}
        self.assertEqual(missing, {}, self.here())

    def test_the_library_exports_what_is_in_the_table(self):
        exported = set(functions(build_dir() / "libsidestep.so"))
        self.assertEqual(exported - {"sidestep_carriers", "sidestep_switch"}, self.calls)

    def test_what_is_interposed_is_there(self):
        # If libc lacks an interposed call, no program can use it: that is worth a note but is not an error.
        absent = sorted(self.calls - set(self.libc))
        if absent:
            print(f"{self.here()}; this libc lacks {', '.join(absent)}", file=sys.stderr)
        not_yet = sorted(name for name, reason in self.listed.items() if reason == NOT_YET and name not in self.calls)
        if not_yet:
            print(f"not interposed yet: {', '.join(not_yet)}", file=sys.stderr)


if __name__ == "__main__":
    sidestep_harness.main()
