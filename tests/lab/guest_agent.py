"""The last step of a guest's boot, running as pid 1: starts programs for the lab and reports how they end.

It speaks lines of JSON over a virtio-serial port. The lab sends requests, and each gets one reply:

    {"id": 7, "do": "start", "process": 3, "argv": [...], ...}   ->   {"reply": 7, "result": 1234}
    {"id": 8, "do": "start", ...}                                ->   {"reply": 8, "error": "..."}

The requests are the methods of Agent whose names begin with do_. Unasked, the agent sends {"event": "ready"}
once, and for each program that ends its exit code or, if negative, its signal:
{"event": "exit", "process": 3, "code": -9}. As pid 1 it has to reap all orphans.

The agent has one thread, which blocks only on the port itself. Every boot pays for what it imports.
"""

import json
import os
import select
import signal
import subprocess

PORT = "sidestep.agent"


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def find_port() -> str:
    """Returns the device of our port; without udev, /dev has no names for the ports."""
    ports = "/sys/class/virtio-ports"
    for entry in os.listdir(ports):
        if read(f"{ports}/{entry}/name").decode().strip() == PORT:
            return f"/dev/{entry}"
    raise RuntimeError(f"no virtio port is called {PORT}")


class Agent:
    def __init__(self, port: int) -> None:
        self._port = port
        self._processes: dict[int, subprocess.Popen] = {}  # by the lab's number
        self._numbers: dict[int, int] = {}  # the lab's number, by pid; only of running programs

    def run(self) -> None:
        """Serves until the lab closes the port, which happens only together with the whole guest."""
        wake, waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(waker, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker)
        self._send({"event": "ready"})
        received = b""
        while True:
            readable, _, _ = select.select([self._port, wake], [], [])
            if wake in readable:
                os.read(wake, 4096)
                self._reap()
            if self._port in readable:
                chunk = os.read(self._port, 65536)
                if not chunk:
                    return
                *lines, received = (received + chunk).split(b"\n")
                for line in lines:
                    self._answer(json.loads(line))

    def _send(self, what: dict) -> None:
        data = json.dumps(what).encode() + b"\n"
        while data:
            data = data[os.write(self._port, data):]

    def _answer(self, request: dict) -> None:
        number = request.pop("id")
        try:
            result = getattr(self, "do_" + request.pop("do"))(**request)
        except Exception as error:  # the lab has to hear of any error
            self._send({"reply": number, "error": f"{type(error).__name__}: {error}"})
        else:
            self._send({"reply": number, "result": result})

    def _reap(self) -> None:
        while True:
            try:
                # Looks without reaping, because Popen has to reap our own children.
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            number = self._numbers.pop(dead.si_pid, None)
            if number is None:
                os.waitpid(dead.si_pid, 0)
            else:
                self._send({"event": "exit", "process": number,
                            "code": self._processes[number].wait()})

    def do_start(self, process: int, argv: list[str], env: dict[str, str], cwd: str, stdout: str,
                 stderr: str | None) -> int:
        """Starts a program in a session of its own; returns its pid."""
        with open(stdout, "ab") as out, open(stderr or os.devnull, "ab") as err:
            started = subprocess.Popen(argv, env=os.environ | env, cwd=cwd, start_new_session=True,
                                       stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=err if stderr else subprocess.STDOUT)
        self._processes[process] = started
        self._numbers[started.pid] = process
        return started.pid

    def do_signal(self, process: int, number: int, group: bool) -> None:
        """Signals a program, or its whole process group; it is not an error if nobody is there."""
        pid = self._processes[process].pid
        try:
            if group:
                os.killpg(pid, number)
            elif pid in self._numbers:
                os.kill(pid, number)
        except ProcessLookupError:
            pass

    def do_leftovers(self) -> list[str]:
        """Returns all processes except ourselves and kernel threads, and the names of all shared memory."""
        found = [f"/dev/shm/{name}" for name in os.listdir("/dev/shm")]
        for pid in os.listdir("/proc"):
            if not pid.isdigit() or int(pid) == os.getpid():
                continue
            try:
                command = read(f"/proc/{pid}/cmdline")
            except OSError:
                continue
            if command:  # neither a kernel thread nor a zombie
                text = command.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
                found.append(f"{text} (pid {pid})")
        return found

    def do_clean(self) -> None:
        """Kills every process except ourselves, and removes all shared memory."""
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        names = [f"/dev/shm/{name}" for name in os.listdir("/dev/shm")]
        subprocess.run(["rm", "-rf", "--", *names], check=True)


def main() -> None:
    port = os.open(find_port(), os.O_RDWR | os.O_CLOEXEC)
    try:
        Agent(port).run()
    finally:  # the end of pid 1 would be a panic: power off instead
        with open("/proc/sysrq-trigger", "w", encoding="ascii") as trigger:
            trigger.write("o")
        signal.pause()


if __name__ == "__main__":
    main()
