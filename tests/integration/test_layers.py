#!/usr/bin/env python3
"""The rule about who may include whom is worth nothing unless a breach of it is found."""

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from sidestep_harness import ROOT, main

# Each file may include what stands before it, but for the neighbours in one row.
STAIRCASE = [["config/c.hpp"], ["engine/base/b.hpp"], ["engine/wire/w.hpp"],
             ["engine/device/d.hpp"], ["engine/shm/s.hpp", "engine/verbs/v.hpp"],
             ["engine/devices/f.hpp"], ["engine/e.hpp"], ["preload/p.hpp"], ["tests/t.hpp"]]
# Only the factory and tests know the two devices.
DEVICES = STAIRCASE[4]
KNOW_DEVICES = ["engine/devices/f.hpp", "tests/t.hpp"]


class Layers(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="sidestep-test-")
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)
        (self.root / "scripts").mkdir()
        shutil.copy(ROOT / "scripts" / "check-layers", self.root / "scripts")
        subprocess.run(["git", "init", "-q", self.root], check=True)
        for step in STAIRCASE:
            for file in step:
                self.write(file)

    def write(self, file, *headers):
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f'#include "{header}"\n' for header in headers))

    def check(self):
        return subprocess.run([self.root / "scripts" / "check-layers"], capture_output=True,
                              text=True, timeout=60, check=False)

    def test_every_pair_of_folders(self):
        row = {file: i for i, step in enumerate(STAIRCASE) for file in step}
        for file in row:
            allowed = [header for header in row if header != file and row[header] < row[file] and
                       (header not in DEVICES or file in KNOW_DEVICES)]
            with self.subTest(file=file):
                self.write(file, *allowed)
                checked = self.check()
                self.assertEqual(checked.returncode, 0, checked.stderr)
                others = [header for header in row if header not in (file, *allowed)]
                self.write(file, *others)
                checked = self.check()
                for header in others:
                    self.assertIn(f"{file} may not know {header}", checked.stderr)
                self.assertEqual(checked.returncode, 1 if others else 0)
                self.write(file)

    def test_other_breaches(self):
        for file, headers, complaint in [
                ("engine/e.hpp", ["../preload/p.hpp"], "write it from the top level"),
                ("engine/e.hpp", ["engine/nowhere.hpp"], "does not exist"),
                ("engine/attic/a.hpp", [], "is in no layer"),
                ("more/m.hpp", [], "the top level holds more")]:
            with self.subTest(file=file):
                self.write(file, *headers)
                checked = self.check()
                self.assertIn(complaint, checked.stderr)
                self.assertEqual(checked.returncode, 1)
                (self.root / file).unlink()
                if file in ("engine/attic/a.hpp", "more/m.hpp"):
                    (self.root / file).parent.rmdir()
                else:
                    self.write(file)


if __name__ == "__main__":
    main()
