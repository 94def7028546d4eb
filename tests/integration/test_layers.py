#!/usr/bin/env python3
"""The rule about which part may include which is worth nothing unless violations are found."""

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from sidestep_harness import ROOT, main

# One file for each part, with the parts that it may include besides config, which every part may include.
# Tests may include everything.
LOW = ["base", "wire", "device"]
MIDDLE = ["connection", "control", "devices", "stream"]
HIGH = ["progress", "lifecycle", "manager", "node"]
KNOWN = {
    "config": [],
    "base": [],
    "wire": ["base"],
    "device": ["base", "wire"],
    "shm": LOW,
    "verbs": LOW,
    "devices": [*LOW, "shm", "verbs"],
    "connection": LOW,
    "control": ["base", "wire"],
    "client": ["base", "wire", "control"],
    "stream": [*LOW, "connection", "control"],
    "progress": [*LOW, *MIDDLE],
    "lifecycle": [*LOW, "connection", "control", "stream", "progress"],
    "manager": [*LOW, *MIDDLE, "progress", "lifecycle"],
    "node": ["base", "wire", "control", "stream", "progress", "lifecycle", "manager"],
    "preload": [*LOW, "connection", "control", "stream", *HIGH],
    "tool": ["base", "wire", "control", "devices", "client", "preload"],
}
KNOWN["tests"] = list(KNOWN)
PLACES = {"config": "config", "preload": "preload", "tool": "preload/tool",
          "tests": "tests"}
FILES = {part: f"{PLACES.get(part, 'engine/' + part)}/{part}.hpp" for part in KNOWN}


class Layers(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="sidestep-test-")
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)
        (self.root / "scripts").mkdir()
        shutil.copy(ROOT / "scripts" / "check-layers", self.root / "scripts")
        subprocess.run(["git", "init", "-q", self.root], check=True)
        for file in FILES.values():
            self.write(file)

    def write(self, file, *headers):
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f'#include "{header}"\n' for header in headers))

    def check(self):
        return subprocess.run([self.root / "scripts" / "check-layers"], capture_output=True,
                              text=True, timeout=60, check=False)

    def test_every_pair_of_parts(self):
        for part, file in FILES.items():
            known = ["config", *KNOWN[part]] if part != "config" else []
            allowed = [FILES[one] for one in known]
            others = [header for header in FILES.values() if header not in (file, *allowed)]
            with self.subTest(part=part):
                self.write(file, *allowed)
                checked = self.check()
                self.assertEqual(checked.returncode, 0, checked.stderr)
                self.write(file, *others)
                checked = self.check()
                for header in others:
                    self.assertIn(f"{file} may not know {header}", checked.stderr)
                self.assertEqual(checked.returncode, 1 if others else 0)
                self.write(file)

    def test_a_friend_in_another_folder(self):
        file = FILES["stream"]
        (self.root / file).write_text("class Stream {\n  friend class Part;\n};\n")
        (self.root / FILES["progress"]).write_text("class Part {\n};\n")
        checked = self.check()
        self.assertIn(f"{file} has a friend in another folder: Part", checked.stderr)
        self.assertEqual(checked.returncode, 1)
        (self.root / "engine" / "stream" / "part.hpp").write_text("class Part {\n};\n")
        checked = self.check()
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_other_breaches(self):
        for file, headers, complaint in [
                ("engine/node/node.hpp", ["../preload/preload.hpp"], "write it from the top level"),
                ("engine/node/node.hpp", ["engine/nowhere.hpp"], "does not exist"),
                ("engine/attic/a.hpp", [], "is in no layer"),
                ("engine/a.hpp", [], "is in no folder of engine/"),
                ("more/m.hpp", [], "the top level holds more")]:
            with self.subTest(file=file):
                self.write(file, *headers)
                checked = self.check()
                self.assertIn(complaint, checked.stderr)
                self.assertEqual(checked.returncode, 1)
                (self.root / file).unlink()
                if file in ("engine/attic/a.hpp", "more/m.hpp"):
                    (self.root / file).parent.rmdir()
                elif file != "engine/a.hpp":
                    self.write(file)


if __name__ == "__main__":
    main()
