#!/usr/bin/env python3
"""CPython's own tests of sockets, and of what is built on them, have the same outcomes as on the kernel.

Needs Debian's libpython3.11-testsuite. The everyday run omits what takes minutes: test_subprocess, and the
parts of test_asyncio that do not move bytes over sockets.
"""

import json
import time

import sidestep_harness
from sidestep_harness import BOTH, KERNEL, SidestepTestCase

PYTHON = "/usr/bin/python3.11"
TEST_SECONDS = 120  # for one of CPython's tests
MODULE_SECONDS = 900
ATTEMPTS = 2  # at running a test alone before a difference counts
MANY = 20  # differences; with more, running each test alone is not worth the time

# Runs all tests of a module, or only the named ones, and writes a line when each test begins and another when
# it ends. A test without a second line has hung, or has taken the process down.
RUNNER = """
import faulthandler, json, os, sys, unittest
from test import support

directory, limit, module, *names = sys.argv[1:]
del sys.argv[1:]
os.chdir(directory)
report = open("outcomes", "w", buffering=1)
support.use_resources = ["network"]  # of the loopback; what needs more hosts is not among these modules

class Outcomes(unittest.TextTestResult):
    def note(self, test, outcome):
        print(json.dumps([test.id(), outcome]), file=report)
    def startTest(self, test):
        super().startTest(test)
        faulthandler.dump_traceback_later(int(limit), exit=True)
        self.note(test, "no end")
    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)
    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "ok")
    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "FAIL")
    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "ERROR")
    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped")
    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.note(test, "expected failure")
    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.note(test, "FAIL")

def pick(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from pick(test)
        # Virtual machines have sockets to their host: those tests may hang on any kernel.
        elif "VSOCK" not in test.id() and (not names or test.id() in names):
            yield test

suite = unittest.TestSuite(pick(unittest.defaultTestLoader.loadTestsFromName(module)))
unittest.TextTestRunner(resultclass=Outcomes, verbosity=2).run(suite)
report.close()
"""


class CPython(SidestepTestCase):
    def setUp(self):
        super().setUp()
        self.runner = self.directory / "runner.py"
        self.runner.write_text(RUNNER, encoding="ascii")

    def start_module(self, mode, module, names=()):
        directory = self.directory / f"{len(self.programs)}-files"
        directory.mkdir()
        program = self.start(f"python-{mode.name}", [PYTHON, self.runner, directory, TEST_SECONDS,
                                                     f"test.{module}", *names], mode.server)
        program.report = directory / "outcomes"
        return program

    def run_both(self, module, names=()):
        """Returns the outcomes by test on the kernel and under Sidestep, run concurrently on two cores."""
        programs = [self.start_module(mode, module, names) for mode in (KERNEL, BOTH)]
        outcomes = []
        for program in programs:
            program.wait(MODULE_SECONDS, code=None)
            self.assertTrue(program.report.exists(), program.describe())
            lines = program.report.read_text(encoding="utf-8").splitlines()
            outcomes.append(dict(json.loads(line) for line in lines))
        return *outcomes, programs[1]

    @staticmethod
    def different(on_kernel, sidestep):
        return {name: (on_kernel.get(name, "absent"), sidestep.get(name, "absent"))
                for name in sorted(on_kernel.keys() | sidestep.keys())
                if on_kernel.get(name) != sidestep.get(name)}

    def check(self, module, engine=False):
        """`engine`: the module sends enough over its streams for some of them to move."""
        with self.part(module=module):
            on_kernel, sidestep, program = self.run_both(module)
            self.assertIn("ok", on_kernel.values())
            # A test that hangs or crashes ends its run; the tests that should have followed run here.
            runs = [program]
            missing = on_kernel.keys() ^ sidestep.keys()
            while missing:
                again, again_sidestep, program = self.run_both(module, sorted(missing))
                runs.append(program)
                on_kernel |= again
                sidestep |= again_sidestep
                before, missing = missing, on_kernel.keys() ^ sidestep.keys()
                if len(missing) >= len(before):
                    break
            different = self.different(on_kernel, sidestep)
            self.assertLessEqual(len(different), MANY, different)
            lasting, reports = [], []
            for name, outcomes in different.items():
                seen = [outcomes]
                for _ in range(ATTEMPTS):
                    *alone, program = self.run_both(module, [name])
                    if not self.different(*alone):
                        break
                    seen += self.different(*alone).values()
                else:
                    lasting += [f"{name}: {a} on the kernel, {b} under Sidestep" for a, b in seen]
                    reports.append(program.describe())
            self.assertFalse(lasting, "\n".join(["", *lasting, *reports]))
            if engine:
                # On a busy machine, the few long streams may have moved only after their bytes were through.
                directions = ("tx", "rx")
                while not all(sum(p.engine_bytes(d) for p in runs) for d in directions) and len(runs) <= ATTEMPTS:
                    runs.append(self.run_both(module)[-1])
                for direction in directions:
                    self.assertGreater(sum(p.engine_bytes(direction) for p in runs), 0)
                self.record("CPython 3.11", f"its {module}, {len(sidestep)} tests",
                            max(run.engine_share() or 0 for run in runs))

            # test_subprocess leaves children that sleep for a few seconds, on the kernel too.
            deadline = time.monotonic() + 30
            while sidestep_harness.leftover_processes() and time.monotonic() < deadline:
                time.sleep(0.1)

    def test_socket(self):
        self.check("test_socket", engine=True)

    def test_selectors(self):
        self.check("test_selectors")

    def test_poll(self):
        self.check("test_poll")

    def test_epoll(self):
        self.check("test_epoll")

    def test_socketserver(self):
        self.check("test_socketserver", engine=True)

    def test_ssl(self):
        self.check("test_ssl", engine=True)

    def test_http(self):
        self.check("test_httplib", engine=True)

    def test_ftp(self):
        self.check("test_ftplib", engine=True)

    def test_urllib(self):
        self.check("test_urllib2_localnet", engine=True)

    def test_asyncio(self):
        if sidestep_harness.FULL:
            self.check("test_asyncio", engine=True)
            return
        for module in ("test_sendfile", "test_sock_lowlevel", "test_streams", "test_server",
                       "test_buffered_proto"):
            self.check(f"test_asyncio.{module}")

    def test_subprocess(self):
        if not sidestep_harness.FULL:
            self.skipTest("takes a minute; SIDESTEP_FULL=1")
        self.check("test_subprocess")


if __name__ == "__main__":
    sidestep_harness.main()
