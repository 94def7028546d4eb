"""A guest's machine: the QEMU process, its console, and the two lines to it.

One line leads to QEMU itself (QMP, for the hardware); the other leads to the agent in the guest
(guest_agent.py, for the programs). Each is one end of a socket pair, so nothing is left in the file system,
and both end when QEMU ends.
"""

import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import threading
import time
from typing import Any

QEMU = "qemu-system-x86_64"
REPLY_WITHIN = 60.0  # seconds; an idle machine needs a few milliseconds


class LabError(Exception):
    """Something about the lab itself went wrong."""


class GuestDied(LabError):
    """The guest is gone, or has never been there."""


def tail(path: pathlib.Path, lines: int = 60) -> str:
    """Returns the end of a log, for a message; empty if there is no log."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    found = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "".join(f"    {line[:300]}\n" for line in found[-lines:])


def start_qemu(arguments: list[str], log: pathlib.Path, pass_fds: tuple[int, ...] = (),
               processor: int | None = None) -> subprocess.Popen:
    """Starts QEMU so that it dies with us, however we die; all its threads run on `processor`, if given.

    For the kernel, "we" are the calling thread: it has to live at least as long as QEMU should.
    """
    place = [] if processor is None else ["taskset", "--cpu-list", str(processor)]
    with open(log, "ab") as output:
        return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *place, QEMU, *arguments],
                                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                pass_fds=pass_fds, start_new_session=True)


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What a guest's machine is made of."""

    node: int  # starts at 1; the last byte of the addresses
    memory: str
    smp: int
    accel: str
    boot: pathlib.Path  # what tests/lab/prepare made
    tools: pathlib.Path  # this directory
    shared: pathlib.Path  # the directory that is /lab in the guest
    local_end: pathlib.Path  # of the cable: a datagram socket that this QEMU makes
    remote_end: pathlib.Path  # likewise, made by the other QEMU
    visible: tuple[pathlib.Path, ...]  # the paths in the host's /tmp that the guest sees

    @property
    def processor(self) -> int | None:
        """The one host processor to run the machine on, if it must not use several; else None.

        QEMU that emulates with one thread omits the guest's memory barriers ("tcg: Do not elide memory
        barriers for !CF_PARALLEL in system mode" fixes a part of that, in 8.1). But its devices run in
        another thread: now and then a guest believes that a queue is busy although the device has just found
        it empty, does not notify the device, and never sends again. On one processor, both threads see their
        writes in the order in which they were made.
        """
        if not self.accel.startswith("tcg") or ("thread=single" not in self.accel and self.smp > 1):
            return None
        ours = sorted(os.sched_getaffinity(0))
        return ours[self.node % len(ours)]


def _share(tag: str, path: pathlib.Path, options: str) -> list[str]:
    quoted = str(path).replace(",", ",,")
    return ["-fsdev", f"local,id={tag},path={quoted},security_model=none,multidevs=remap{options}",
            "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def cable_end(name: str, local: pathlib.Path, remote: pathlib.Path) -> list[str]:
    """Returns the arguments for a cable to another QEMU. Packets are lost while that end is missing."""
    return ["-netdev", f"dgram,id={name},local.type=unix,local.path={local}"
                       f",remote.type=unix,remote.path={remote}"]


class Machine:
    """A running QEMU; close() ends it for good."""

    def __init__(self, hardware: Hardware, logs: pathlib.Path, boot: int) -> None:
        self.node = hardware.node
        self.console = logs / f"console-{boot}"
        self.log = logs / f"qemu-{boot}"
        self.agent, agent_fd = socket.socketpair()
        self.monitor, monitor_fd = socket.socketpair()
        self.screen, screen_fd = socket.socketpair()  # of the interactive shell
        with agent_fd, monitor_fd, screen_fd:
            fds = tuple(end.fileno() for end in (agent_fd, monitor_fd, screen_fd))
            self._qemu = start_qemu(self._arguments(hardware, *fds), self.log, fds,
                                    hardware.processor)
        self.monitor.settimeout(REPLY_WITHIN)
        self._monitor_lines = self.monitor.makefile("r", encoding="utf-8")
        self._monitor_ready = False

    def _arguments(self, hardware: Hardware, agent: int, monitor: int, screen: int) -> list[str]:
        visible = ":".join(map(str, hardware.visible))
        kernel = ("console=ttyS0 quiet panic=-1 mitigations=off nokaslr audit=0 cryptomgr.notests "
                  # With this, reading the clock does not call into the emulator.
                  "clocksource=tsc tsc=reliable "
                  # One processor for the boot; guest-setup switches the others on.
                  "maxcpus=1 noreplace-smp "
                  f"random.trust_cpu=on node={hardware.node} visible={visible}")
        return [
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-machine", "q35", "-accel", hardware.accel, "-cpu", "max",
            "-smp", str(hardware.smp), "-m", hardware.memory,
            "-kernel", str(hardware.boot / "vmlinux"), "-initrd", str(hardware.boot / "initrd"),
            "-append", kernel,
            "-chardev", f"file,id=console,path={self.console}",
            "-serial", "chardev:console",
            "-chardev", f"socket,id=monitor,fd={monitor}",
            "-mon", "chardev=monitor,mode=control",
            "-device", "virtio-serial-pci",
            "-chardev", f"socket,id=agent,fd={agent}",
            "-device", "virtserialport,chardev=agent,name=sidestep.agent",
            "-chardev", f"socket,id=screen,fd={screen}",
            "-device", "virtconsole,chardev=screen",
            "-device", "virtio-rng-pci",
            *_share("host", pathlib.Path("/"), ",readonly=on"),
            *_share("boot", hardware.boot, ",readonly=on"),
            *_share("tools", hardware.tools, ",readonly=on"),
            *_share("lab", hardware.shared, ""),
            *cable_end("cable", hardware.local_end, hardware.remote_end),
            # An MTU of at least 4096 plus RoCE's headers, so that the path MTU can be 4096.
            "-device", "virtio-net-pci,netdev=cable,id=eth0,host_mtu=4500,romfile="
                       f",mac=52:54:00:77:00:{hardware.node:02x}",
        ]

    @property
    def running(self) -> bool:
        return self._qemu.poll() is None

    def qmp(self, command: str, **arguments: Any) -> Any:
        """Has QEMU do something to the hardware; see its QMP reference."""
        try:
            if not self._monitor_ready:
                self._monitor_ready = True
                self._monitor_lines.readline()  # the greeting
                self.qmp("qmp_capabilities")
            request = {"execute": command, "arguments": arguments}
            self.monitor.sendall(json.dumps(request).encode() + b"\n")
            for line in self._monitor_lines:
                reply = json.loads(line)
                if "return" in reply:
                    return reply["return"]
                if "error" in reply:
                    raise LabError(f"QEMU can't {command}: {reply['error']['desc']}")
        except OSError as error:
            raise GuestDied(f"guest {self.node} can't {command}: {error}") from error
        raise GuestDied(f"guest {self.node} ended")

    def close(self) -> None:
        """Ends the machine as a power failure would."""
        self._qemu.kill()
        self._qemu.wait()
        for end in (self.agent, self.monitor, self.screen):
            # Wakes threads that read from it.
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def last_words(self) -> str:
        """Returns the ends of the machine's logs, for a message."""
        return "".join(f"  - {log.name} of guest {self.node}:\n{text}"
                       for log in (self.console, self.log) if (text := tail(log)))


class AgentLink:
    """The host's end of the line to a guest's agent; any thread may call its methods."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._next_request = 0
        self._replies: dict[int, dict[str, Any]] = {}
        self._ends: dict[int, int] = {}  # exit codes, by the number of the process
        self._ready = False
        self._ended = False
        threading.Thread(target=self._read, name=f"guest {machine.node}", daemon=True).start()

    def _read(self) -> None:
        try:
            with self._machine.agent.makefile("r", encoding="utf-8") as lines:
                for line in lines:
                    self._take(json.loads(line))
        except (OSError, ValueError):
            pass
        with self._lock:
            self._ended = True
            self._news.notify_all()

    def _take(self, news: dict[str, Any]) -> None:
        with self._lock:
            if "reply" in news:
                self._replies[news["reply"]] = news
            elif news["event"] == "ready":
                self._ready = True
            elif news["event"] == "exit":
                self._ends[news["process"]] = news["code"]
            self._news.notify_all()

    def _died_locked(self) -> GuestDied:
        return GuestDied(f"guest {self._machine.node} has died\n{self._machine.last_words()}")

    @property
    def ended(self) -> bool:
        """True if the guest has died or is about to; its QEMU takes a moment longer."""
        with self._lock:
            return self._ended

    def wait_ready(self, deadline: float) -> None:
        """Waits for the boot to end."""
        with self._lock:
            self._news.wait_for(lambda: self._ready or self._ended, deadline - time.monotonic())
            if self._ended:
                raise self._died_locked()
            if not self._ready:
                raise LabError(f"guest {self._machine.node} has not booted in time\n"
                               + self._machine.last_words())

    def request(self, do: str, **arguments: Any) -> Any:
        """Has the agent do something and returns the result."""
        with self._lock:
            number = self._next_request
            self._next_request += 1
            line = json.dumps({"id": number, "do": do, **arguments}).encode() + b"\n"
            if self._ended:
                raise self._died_locked()
            try:
                self._machine.agent.sendall(line)
            except OSError as error:
                raise self._died_locked() from error
            self._news.wait_for(lambda: number in self._replies or self._ended, REPLY_WITHIN)
            reply = self._replies.pop(number, None)
            if reply is None:
                if self._ended:
                    raise self._died_locked()
                raise LabError(f"guest {self._machine.node} does not answer")
        if "error" in reply:
            raise LabError(f"guest {self._machine.node} can't {do}: {reply['error']}")
        return reply["result"]

    def wait_exit(self, process: int, timeout: float) -> int | None:
        """Returns the exit code of a process, or None if it has not ended in time."""
        with self._lock:
            self._news.wait_for(lambda: process in self._ends or self._ended, timeout)
            if process in self._ends:
                return self._ends[process]
            if self._ended:
                raise self._died_locked()
            return None
