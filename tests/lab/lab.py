#!/usr/bin/env python3
"""The RDMA lab: virtual hosts with a Soft-RoCE device, on one cable, for tests and for use by hand.

    with Lab(guests=2) as lab:
        server, client = lab.guests
        process = server.start("ib_send_lat -d rxe0 -x 1")
        client.run(f"ib_send_lat -d rxe0 -x 1 {server.address}")
        process.wait(10)

A lab boots its guests once, which takes some seconds; then it runs any number of commands in them. The guests
see the whole file system of the host at the same paths, and change only their own copy of it. Both sides read
and write the files in guest.shared. README.md has more; run tests/lab/prepare first.
"""

import atexit
import contextlib
import dataclasses
import fcntl
import os
import pathlib
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator, Mapping, Sequence

from lab_machine import (QEMU, AgentLink, GuestDied, Hardware, LabError, Machine, cable_end,
                         start_qemu)

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NETWORK = "10.77.0"
Command = str | Sequence[str | os.PathLike]


class TimedOut(LabError):
    """A program did not end in time and has been killed."""


class CommandFailed(LabError):
    """A program ended with an exit code other than 0."""


def lab_dir() -> pathlib.Path:
    """Returns the directory in which tests/lab/prepare puts what the guests boot from."""
    return pathlib.Path(os.environ.get("SIDESTEP_LAB_DIR") or ROOT / "build" / "lab").resolve()


@dataclasses.dataclass(frozen=True)
class Result:
    """How a program ended: its exit code (negative: the signal) and what it printed."""

    returncode: int
    output: str


class Process:
    """A program in a guest, in a session and process group of its own."""

    def __init__(self, guest: "Guest", link: AgentLink, number: int, command: Command, pid: int,
                 stdout: pathlib.Path, stderr: pathlib.Path | None) -> None:
        self.guest = guest
        self.command = command
        self.pid = pid
        self._link = link
        self._number = number
        self._stdout = stdout
        self._stderr = stderr

    def output(self) -> str:
        """Returns what the program has printed so far to stdout, and to stderr unless that is separate."""
        return self._stdout.read_text(errors="replace")

    def error_output(self) -> str:
        """Returns what the program has printed to stderr so far, if that is separate."""
        return self._stderr.read_text(errors="replace") if self._stderr else ""

    def poll(self) -> int | None:
        """Returns the exit code of the program, or None while it runs."""
        return self._link.wait_exit(self._number, 0)

    def wait(self, timeout: float = 60) -> int:
        """Waits for the program to end; if it does not end in time, kills it and raises TimedOut."""
        code = self._link.wait_exit(self._number, timeout)
        if code is None:
            self.kill()
            raise TimedOut(f"not within {timeout} s: {self.describe()}")
        return code

    def send_signal(self, number: int) -> None:
        """Signals the program alone."""
        self._link.request("signal", process=self._number, number=number, group=False)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signals the whole process group; after SIGKILL, waits until the program is dead."""
        self._link.request("signal", process=self._number, number=number, group=True)
        if number == signal.SIGKILL and self._link.wait_exit(self._number, 20) is None:
            raise LabError(f"survived SIGKILL: {self.describe()}")

    def describe(self) -> str:
        """Returns the command and the end of its output, for a message."""
        try:
            code = self.poll()
            state = "running" if code is None else f"exit code {code}"
        except GuestDied:
            state = "its guest died"
        command = self.command if isinstance(self.command, str) else " ".join(
            map(str, self.command))
        output = (self.output() + self.error_output()).rstrip().splitlines()[-40:]
        return "\n".join([f"{self.guest.name}: {command}: pid {self.pid}, {state}",
                          *("    " + line[:2000] for line in output)])


class Guest:
    """A virtual host: eth0 on the lab's cable, and the RDMA device rxe0 on eth0."""

    def __init__(self, node: int, directory: pathlib.Path, hardware: Hardware) -> None:
        self.node = node
        self.name = f"guest{node}"
        self.address = f"{NETWORK}.{node}"
        self.processes: list[Process] = []
        self._directory = directory
        self._hardware = hardware
        self._machine: Machine | None = None
        self._link: AgentLink | None = None
        self._boots = 0
        self._captures = 0
        for name in ("shared", "output", "boot", "tools"):
            (hardware.shared / name).mkdir(parents=True)

    @property
    def shared(self) -> pathlib.Path:
        """The path on the host of the directory that is /lab/shared in the guest."""
        return self._hardware.shared / "shared"

    # ---- the power switch ----

    def power_on(self) -> None:
        """Starts the guest and returns at once; wait_ready() waits until it has booted."""
        if self.running:
            raise LabError(f"{self.name} is running")
        self.power_off_hard()
        self._boots += 1
        self._machine = Machine(self._hardware, self._directory, self._boots)
        self._link = AgentLink(self._machine)

    def wait_ready(self, timeout: float) -> None:
        self._connection().wait_ready(time.monotonic() + timeout)

    def power_off_hard(self) -> None:
        """Kills the guest, which tells nobody. Its files in shared and output stay."""
        if self._machine is not None:
            self._machine.close()

    def reboot(self, timeout: float = 120) -> None:
        """Kills the guest and boots the same host afresh: only shared survives."""
        self.power_off_hard()
        self.power_on()
        self.wait_ready(timeout)

    @property
    def running(self) -> bool:
        has_ended = self._link is not None and self._link.ended
        return self._machine is not None and self._machine.running and not has_ended

    def _power(self) -> Machine:
        if self._machine is None or not self._machine.running:
            raise GuestDied(f"{self.name} is off")
        return self._machine

    def _connection(self) -> AgentLink:
        if self._link is None:
            raise GuestDied(f"{self.name} has never been on")
        return self._link

    # ---- programs ----

    def start(self, command: Command, env: Mapping[str, str] | None = None,
              cwd: str | os.PathLike = "/tmp", separate_stderr: bool = False) -> Process:
        """Starts a program as root. A string is for bash; a sequence is an argument vector.

        The environment is that of the guest (PATH, HOME, LANG, TERM, NODE), plus env.
        """
        number = len(self.processes)
        argv = ["bash", "-c", command] if isinstance(command, str) else list(map(str, command))
        stdout, stderr = f"{number:04}.out", f"{number:04}.err" if separate_stderr else None
        link = self._connection()
        pid = link.request("start", process=number, argv=argv, env=dict(env or {}), cwd=str(cwd),
                           stdout=f"/lab/output/{stdout}",
                           stderr=f"/lab/output/{stderr}" if stderr else None)
        output = self._hardware.shared / "output"
        process = Process(self, link, number, command, pid, output / stdout,
                          output / stderr if stderr else None)
        self.processes.append(process)
        return process

    def run(self, command: Command, timeout: float = 60, env: Mapping[str, str] | None = None,
            cwd: str | os.PathLike = "/tmp", check: bool = True) -> Result:
        """Runs a program to its end; with `check`, raises CommandFailed unless the exit code is 0."""
        process = self.start(command, env, cwd)
        code = process.wait(timeout)
        if check and code != 0:
            raise CommandFailed(process.describe())
        return Result(code, process.output())

    def leftovers(self, settle: float = 0) -> list[str]:
        """Returns the processes and the files in /dev/shm that have not gone away after `settle` seconds."""
        deadline = time.monotonic() + settle
        while (found := self._connection().request("leftovers")) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def clean(self) -> None:
        """Kills all processes, and empties /dev/shm."""
        deadline = time.monotonic() + 20
        while self.leftovers():
            if time.monotonic() > deadline:
                raise LabError(f"{self.name}: survived SIGKILL: {self.leftovers()}")
            self._connection().request("clean")
            time.sleep(0.02)

    # ---- hardware ----

    def plug(self, connected: bool) -> None:
        """Plugs in the network cable, or pulls it out, so that eth0 loses its carrier and rxe0 its port."""
        self._power().qmp("set_link", name="eth0", up=connected)

    def freeze(self, frozen: bool) -> None:
        """Stops the guest with everything in it, or lets it go on as if no time had passed."""
        self._power().qmp("stop" if frozen else "cont")

    @property
    def screen(self) -> socket.socket:
        """The other end of the terminal /dev/hvc0."""
        return self._power().screen

    @contextlib.contextmanager
    def capture(self, path: str | os.PathLike | None = None) -> Iterator[pathlib.Path]:
        """Writes what passes the guest's end of the cable into a pcap file, while the block runs."""
        self._captures += 1
        name = f"capture{self._captures}"
        path = pathlib.Path(path or self._directory / f"{name}.pcap").absolute()
        self._power().qmp("object-add", **{"qom-type": "filter-dump"}, id=name, netdev="cable",
                          file=str(path))
        try:
            yield path
        finally:
            if self.running:
                self._power().qmp("object-del", id=name)

    def describe(self) -> str:
        """Returns the ends of the logs of the machine, for a message."""
        return self._machine.last_words() if self._machine else ""


def dissect(pcap: pathlib.Path, fields: Sequence[str], only: str = "") -> list[dict[str, str]]:
    """Returns the given fields of each packet in a capture that passes the display filter, read by tshark."""
    argv = ["tshark", "-n", "-r", str(pcap), "-T", "fields", "-E", "separator=|"]
    argv += ["-Y", only] if only else []
    argv += [argument for field in fields for argument in ("-e", field)]
    lines = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    return [dict(zip(fields, line.split("|"), strict=True)) for line in lines]


class Lab:
    """Some guests on one cable; a context manager that boots them and ends them.

    A hub joins more than two guests, and each sees the packets of all. `jvm_safe` emulates with one thread on
    one processor, because QEMU 7.2 with several threads sometimes breaks code that a JIT compiler has just
    written. The guests live no longer than the thread that makes the lab.
    """

    def __init__(self, guests: int = 2, memory: str = "2G", smp: int = 2, jvm_safe: bool = False,
                 boot_timeout: float = 120, visible: Sequence[os.PathLike | str] = ()) -> None:
        reason = self.unavailable()
        if reason:
            raise LabError(reason)
        self._boot_timeout = boot_timeout
        self._hub: subprocess.Popen | None = None
        self._directory, self._lock = _make_directory()
        atexit.register(self.close)  # after an interrupt, unittest ends without class cleanups
        accel = os.environ.get("SIDESTEP_LAB_ACCEL") or (
            "tcg,thread=single" if jvm_safe else "tcg,thread=multi")
        self.guests = []
        for node in range(1, guests + 1):
            other = f"guest{3 - node}" if guests == 2 else f"hub{node}"
            directory = self._directory / f"{node}"
            hardware = Hardware(node, memory, smp, accel, boot=lab_dir(), tools=HERE,
                                shared=directory / "lab",
                                local_end=self._directory / f"cable-guest{node}",
                                remote_end=self._directory / f"cable-{other}",
                                visible=_in_tmp([ROOT, *map(pathlib.Path, visible)]))
            self.guests.append(Guest(node, directory, hardware))

    @staticmethod
    def unavailable() -> str | None:
        """Returns the reason why there can't be a lab on this machine, in one line; None if there can."""
        if platform.machine() != "x86_64":
            return f"the RDMA lab needs an x86-64 machine, and this is {platform.machine()}"
        for tool in (QEMU, "setpriv", "taskset", "rdma", "ibv_devinfo"):
            if not shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
                return f"the RDMA lab needs {tool} (scripts/packages)"
        if not (lab_dir() / "stamp").exists():
            return f"the RDMA lab has not been prepared in {lab_dir()} (tests/lab/prepare)"
        return None

    @classmethod
    def require(cls) -> None:
        """Skips the test if there can't be a lab; fails it if tests must not be skipped."""
        reason = cls.unavailable()
        if reason:
            required = os.environ.get("SIDESTEP_LAB") == "required"
            if required or os.environ.get("CI", "") not in ("", "0", "false"):
                raise LabError(reason)
            raise unittest.SkipTest(reason)

    def __enter__(self) -> "Lab":
        try:
            if len(self.guests) > 2:
                self._start_hub()
            for guest in self.guests:
                guest.power_on()
            deadline = time.monotonic() + self._boot_timeout
            for guest in self.guests:
                guest.wait_ready(deadline - time.monotonic())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_hub(self) -> None:
        """Starts a QEMU without a machine, for its network only."""
        arguments = ["-machine", "none", "-nodefaults", "-no-user-config", "-display", "none"]
        for guest in self.guests:
            arguments += cable_end(f"cable{guest.node}", self._directory / f"cable-hub{guest.node}",
                                   self._directory / f"cable-guest{guest.node}")
            arguments += ["-netdev", f"hubport,id=port{guest.node},hubid=0"
                                     f",netdev=cable{guest.node}"]
        self._hub = start_qemu(arguments, self._directory / "hub")

    def close(self) -> None:
        """Ends all guests, and removes everything that they wrote."""
        atexit.unregister(self.close)
        for guest in self.guests:
            guest.power_off_hard()
        if self._hub is not None:
            self._hub.kill()
            self._hub.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def interrupt_once() -> None:
    """Turns the first SIGINT or SIGTERM into an interrupt; ignores later ones, to clean up undisturbed."""

    def interrupt(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


def _make_directory() -> tuple[pathlib.Path, int]:
    """Makes a directory for a lab and a descriptor that locks it; removes the directories of killed labs."""
    for old in pathlib.Path(tempfile.gettempdir()).glob("sidestep-lab-*"):
        try:
            status = old.stat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < 60:
                continue  # not ours, or not locked yet
            lock = os.open(old, os.O_RDONLY)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)
        except OSError:
            pass  # the lab of this directory is running
        finally:
            os.close(lock)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="sidestep-lab-"))
    lock = os.open(directory, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return directory, lock


def _in_tmp(paths: Sequence[pathlib.Path]) -> tuple[pathlib.Path, ...]:
    """Returns the paths within /tmp, which in a guest is not the host's, except those inside another one."""
    found: list[pathlib.Path] = []
    for path in sorted(path.resolve() for path in paths):
        inside = path.is_relative_to("/tmp") and path != pathlib.Path("/tmp")
        if inside and not any(path.is_relative_to(other) for other in found):
            if any(c in str(path) for c in ": \t\n\""):
                raise LabError(f"the name of {path} can't be given to a guest")
            found.append(path)
    return tuple(found)


if __name__ == "__main__":
    import lab_commands

    sys.exit(lab_commands.main())
