"""Runs real programs in pairs, on the kernel and under Sidestep, and checks what they leave behind.

A test file ends with

    if __name__ == "__main__":
        sidestep_harness.main()

and is run as `test_x.py --build DIR` (unittest's own arguments may follow), or by `python3 -m unittest` with
SIDESTEP_BUILD in the environment. If it has the privileges, main() first moves the file into network, mount,
and process namespaces of its own, so that ports are free, /dev/shm is empty, and nothing outlives the run.

SIDESTEP_FULL=1 selects the sizes of the acceptance run instead of those of an everyday run.
SIDESTEP_TEST_BARE=1 stays in the caller's namespaces. SIDESTEP_TEST_REPORT names a file to which the tests of
third-party programs append what they measured, one JSON object per line.
"""

import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FULL = os.environ.get("SIDESTEP_FULL", "") not in ("", "0")
# The streams of tests are short, so they leave the kernel at once: the engine is supposed to carry them.
# Measurements use SIDESTEP_ASK_AFTER's default, as users do. No test then checks how much the engine carries.
AT_ONCE = os.environ.get("SIDESTEP_TEST_AT_ONCE", "") != "0"
ENGINE_SHARE = 0.99  # of the payload, if both ends run under Sidestep
PR_SET_CHILD_SUBREAPER = 36
ISOLATED = "SIDESTEP_TEST_ISOLATED"


def build_dir():
    return pathlib.Path(os.environ.get("SIDESTEP_BUILD", ROOT / "build")).resolve()


def protocol_version():
    """The version of the protocol that nodes speak to each other."""
    return re.search(r"kProtocolVersion = (\d+);", (ROOT / "engine" / "wire" / "version.hpp").read_text()).group(1)


def preload_library():
    return build_dir() / "libsidestep.so"


def tool():
    return build_dir() / "sidestep"


def pair():
    return build_dir() / "programs" / "pair"


def java(program, *args, options=()):
    """The command line of one of the Java programs, with few JVM threads to keep the load low."""
    return ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=4", *options,
            "-cp", str(build_dir() / "java"), program, *map(str, args)]


@dataclasses.dataclass(frozen=True)
class Mode:
    """Which ends of a pair run under Sidestep."""

    name: str
    server: bool
    client: bool

    @property
    def both(self):
        return self.server and self.client


KERNEL = Mode("kernel", False, False)
BOTH = Mode("both", True, True)
SERVER_ONLY = Mode("server only", True, False)
CLIENT_ONLY = Mode("client only", False, True)
SIDESTEP_MODES = (BOTH, SERVER_ONLY, CLIENT_ONLY)
ALL_MODES = (KERNEL, *SIDESTEP_MODES)


OWN_ADDRESSES = ("198.51.100.1", "198.51.100.2")  # of lo, inside our own namespaces (TEST-NET-2)


# ---- namespaces ----------------------------------------------------------------------------------


def _can_isolate():
    if os.environ.get("SIDESTEP_TEST_BARE") or os.geteuid() != 0:
        return False
    probe = subprocess.run(["unshare", *_UNSHARE, "true"], capture_output=True, check=False)
    return probe.returncode == 0


_UNSHARE = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def isolate(argv=None):
    """Restarts this program in new namespaces; returns inside them, or at once if there is no isolation."""
    if os.environ.get(ISOLATED):
        _set_up_namespace()
        return
    if _can_isolate():
        os.environ[ISOLATED] = "1"
        command = argv or [sys.executable, *sys.argv]
        os.execvp("unshare", ["unshare", *_UNSHARE, *command])


def _set_up_namespace():
    os.environ.pop(ISOLATED)  # a program that we start isolates itself again if it wants to
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # A client that connects to the first of these addresses gets the second as its source.
    for address in OWN_ADDRESSES:
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    subprocess.run(["ip", "route", "replace", "local", OWN_ADDRESSES[0], "dev", "lo", "table", "local",
                    "src", OWN_ADDRESSES[1]], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"], check=True)
    path = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
    try:
        path.write_text("32768 60999", encoding="ascii")
    except OSError as error:
        print(f"note: {path}: {error}", file=sys.stderr)


def adopt_orphans():
    """Makes orphaned processes our children, so that leftover_processes() sees them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def leftover_processes():
    """Returns the pids of living descendants; reaps dead ones that nobody has waited for."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        state, parent = stat.rpartition(")")[2].split()[:2]
        parents[int(entry.name)] = (int(parent), state)
    found = []
    ours = {os.getpid()}
    grown = True
    while grown:
        grown = False
        for pid, (parent, state) in parents.items():
            if parent in ours and pid not in ours:
                ours.add(pid)
                grown = True
                if state == "Z" and parent == os.getpid():
                    try:
                        os.waitpid(pid, os.WNOHANG)
                    except ChildProcessError:
                        pass
                elif state != "Z":
                    found.append(pid)
    return found


# ---- ports ---------------------------------------------------------------------------------------

_next_port = 20000 + os.getpid() % 50 * 200


def free_port():
    """Returns a port outside the ephemeral range, for programs that can't choose one themselves."""
    global _next_port
    for _ in range(2000):
        _next_port = 20000 + (_next_port - 20000 + 1) % 10000
        try:
            with socket.create_server(("", _next_port), family=socket.AF_INET6,
                                      dualstack_ipv6=True):
                return _next_port
        except OSError:
            continue
    raise RuntimeError("no free port")


def listening_ports():
    """Returns the TCP ports with a listening socket in this network namespace, without connecting to any."""
    ports = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


# ---- processes -----------------------------------------------------------------------------------


class Program:
    """A process that a test started, with its output and its stats files; it must end within a time limit."""

    def __init__(self, case, name, argv, under, env, stdin=None):
        self.name = name
        self.case = case
        self.under = under
        self.directory = case.directory / f"{len(case.programs):03}-{name}"
        self.directory.mkdir()
        self.argv = [str(a) for a in argv]
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith("SIDESTEP_") and k != "LD_PRELOAD"}
        if under:
            environment["LD_PRELOAD"] = str(preload_library())
            if AT_ONCE:
                environment["SIDESTEP_ASK_AFTER"] = "0"
            environment["SIDESTEP_STATS_FILE"] = str(self.directory / "%p.json")
            environment["SIDESTEP_LOG_FILE"] = str(self.directory / "sidestep.log")
        environment.update(env)
        with open(self.directory / "stdout", "wb") as out, \
                open(self.directory / "stderr", "wb") as err:
            self.process = subprocess.Popen(self.argv, stdout=out, stderr=err,
                                            stdin=stdin or subprocess.DEVNULL, env=environment,
                                            start_new_session=True)
        self.pid = self.process.pid

    @property
    def stdout(self):
        return (self.directory / "stdout").read_text(errors="replace")

    @property
    def stderr(self):
        return (self.directory / "stderr").read_text(errors="replace")

    @property
    def running(self):
        return self.process.poll() is None

    def wait_output(self, pattern, timeout=30):
        """Waits until the program has printed a match of the pattern, and returns the match."""
        deadline = time.monotonic() + timeout
        while True:
            ended = not self.running
            match = re.search(pattern, self.stdout, re.MULTILINE)
            if match:
                return match
            if ended:
                self.case.fail(f"{self.name} ended before it printed {pattern!r}")
            if time.monotonic() > deadline:
                self.case.fail(f"{self.name} did not print {pattern!r} within {timeout} s")
            time.sleep(0.01)

    def wait_listening(self, port=None, timeout=30):
        """Waits until the program listens, and returns its port, which it prints if `port` is None."""
        if port is None:
            return int(self.wait_output(r"^listening (\d+)$", timeout).group(1))
        deadline = time.monotonic() + timeout
        while port not in listening_ports():
            if not self.running:
                self.case.fail(f"{self.name} ended before it listened on port {port}")
            if time.monotonic() > deadline:
                self.case.fail(f"{self.name} does not listen on port {port} after {timeout} s")
            time.sleep(0.01)
        return port

    def wait(self, timeout=60, code=0):
        """Waits for the end; fails on a hang, or on an exit code other than `code` unless that is None."""
        try:
            got = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self.case.fail(f"{self.name} did not end within {timeout} s")
        if code is not None and got != code:
            self.case.fail(f"{self.name} ended with {got}, expected {code}")
        return got

    def stop(self, timeout=15):
        """Ends the program as a user would (SIGINT, then SIGTERM) and waits for it."""
        for number in (signal.SIGINT, signal.SIGTERM):
            if self.running:
                self.process.send_signal(number)
                try:
                    self.process.wait(timeout)
                except subprocess.TimeoutExpired:
                    continue
        if self.running:
            self.kill()
            self.case.fail(f"{self.name} ignored SIGINT and SIGTERM for {timeout} s each")

    def kill(self):
        """Kills the program and everything in its process group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def stats(self):
        """Returns the stats that the program wrote at exit, or None if it wrote none."""
        path = self.directory / f"{self.pid}.json"
        if not path.exists():
            return None
        return json.loads(path.read_text())

    def all_stats(self):
        """Returns the stats of the program and of the processes that it started, by pid."""
        return {int(p.stem): json.loads(p.read_text()) for p in self.directory.glob("*.json")}

    def engine_bytes(self, direction):
        return sum(s["bytes"][direction]["engine"] for s in self.all_stats().values())

    def engine_share(self):
        """Returns the engine's share of all bytes of this program and its children; None without any."""
        engine = kernel = 0
        for stats in self.all_stats().values():
            for direction in ("tx", "rx"):
                engine += stats["bytes"][direction]["engine"]
                kernel += stats["bytes"][direction]["kernel"]
        return engine / (engine + kernel) if engine + kernel else None

    def describe(self):
        state = "running" if self.running else f"exit code {self.process.returncode}"
        lines = [f"--- {self.name}{' (Sidestep)' if self.under else ''}: pid {self.pid}, {state}",
                 "    " + " ".join(self.argv)]
        for path in sorted(self.directory.iterdir()):
            text = path.read_text(errors="replace").rstrip()
            if text:
                lines.append(f"  - {path.name}:")
                lines += ["    " + line[:2000] for line in text.splitlines()[-25:]]
        return "\n".join(lines)


class SidestepTestCase(unittest.TestCase):
    """Starts programs in a directory of its own; nothing of them may be left afterwards."""

    maxDiff = None
    environment: dict[str, str] = {}  # for all programs

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        adopt_orphans()

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="sidestep-test-"))
        self.programs = []
        self._shm_before = self._shared_memory()

    @staticmethod
    def _shared_memory():
        return {str(p) for p in pathlib.Path("/dev/shm").iterdir()}

    def tearDown(self):
        self._end_programs(self.programs)
        shutil.rmtree(self.directory)

    @contextlib.contextmanager
    def part(self, **parameters):
        """Runs a part of a test that has its own programs, as a subtest.

        On failure, reports what the programs printed and logged, and kills those that still run. On success,
        checks that they left nothing behind.
        """
        first = len(self.programs)
        with self.subTest(**parameters):
            try:
                yield
                self.check_nothing_left()
            except unittest.SkipTest:
                raise
            except Exception as error:
                # The programs that the error names come first; six are as many as a reader can take in.
                said = str(error)
                mine = sorted(self.programs[first:], key=lambda p: p.name not in said)
                report = "\n".join(p.describe() for p in mine[:6])
                failure = self.failureException(f"{type(error).__name__}: {said}\n{report}")
                raise failure.with_traceback(error.__traceback__) from None
            finally:
                self._end_programs(self.programs[first:])

    @staticmethod
    def _end_programs(programs):
        for program in programs:
            program.kill()
        for pid in leftover_processes():
            os.kill(pid, signal.SIGKILL)

    def check_nothing_left(self):
        """Checks that no process and nothing in shared memory survives the programs of a test."""
        running = [p.name for p in self.programs if p.running]
        self.assertEqual(running, [], "programs that a test has not waited for")
        deadline = time.monotonic() + 2
        while leftover_processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual(leftover_processes(), [], "processes left behind")
        self.assertEqual(self._shared_memory() - self._shm_before, set(), "left in /dev/shm")

    def start(self, name, argv, under=False, env=None, stdin=None):
        if under and not preload_library().exists():
            self.fail(f"{preload_library()} has not been built")
        program = Program(self, name, argv, under, {**self.environment, **(env or {})}, stdin)
        self.programs.append(program)
        return program

    @staticmethod
    def record(program, work, share, unit="", kernel=None, sidestep=None):
        """Writes a line of the table of programs if SIDESTEP_TEST_REPORT names a file for it.

        The line holds the engine's share of the bytes, and the same rate or time on the kernel and under
        Sidestep.
        """
        path = os.environ.get("SIDESTEP_TEST_REPORT")
        if path:
            with open(path, "a", encoding="utf-8") as report:
                print(json.dumps({"program": program, "work": work, "share": share, "unit": unit,
                                  "kernel": kernel, "sidestep": sidestep}), file=report)

    # ---- what the stats files must say ----

    def assert_over_engine(self, program, tx=None, rx=None, streams=None, share=ENGINE_SHARE):
        """Checks that the engine carried (almost) all of the payload that the program itself reported."""
        stats = program.all_stats()
        self.assertTrue(stats, f"{program.name} wrote no stats file")
        for direction, payload in (("tx", tx), ("rx", rx)):
            if payload is None:
                continue
            carried = program.engine_bytes(direction)
            self.assertGreaterEqual(
                carried, share * payload,
                f"{program.name}: the engine carried {carried} of {payload} bytes {direction}")
        if streams is not None:
            on_engine = sum(s["streams"]["engine"] for s in stats.values())
            self.assertEqual(on_engine, streams,
                             f"{program.name}: streams that reached the engine")

    def assert_all_over_engine(self, *programs, streams):
        """Checks that every stream of the programs moved up, and that both directions carried something."""
        for program in programs:
            self.assert_over_engine(program, streams=streams)
            for direction in ("tx", "rx"):
                self.assertGreater(program.engine_bytes(direction), 0,
                                   f"{program.name}: bytes over the engine, {direction}")

    def assert_on_kernel(self, program):
        """Checks that the engine carried nothing, and that a process without Sidestep wrote no stats."""
        if not program.under:
            self.assertEqual(program.all_stats(), {},
                             f"{program.name} runs without Sidestep and wrote stats")
        for stats in program.all_stats().values():
            self.assertEqual(stats["bytes"]["tx"]["engine"], 0, program.name)
            self.assertEqual(stats["bytes"]["rx"]["engine"], 0, program.name)
            self.assertEqual(stats["streams"]["engine"], 0, program.name)


def main():
    """Runs the calling test file."""
    arguments = sys.argv[1:]
    if "--build" in arguments:
        at = arguments.index("--build")
        os.environ["SIDESTEP_BUILD"] = str(pathlib.Path(arguments[at + 1]).resolve())
        del arguments[at:at + 2]
    # Background jobs of a shell ignore SIGINT, and so would what they start: stop() would wait in vain.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    isolate([sys.executable, sys.argv[0], *arguments])
    unittest.main(argv=[sys.argv[0], *arguments], verbosity=2)
