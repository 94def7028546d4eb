"""The lab for use by hand: `lab.py run COMMAND` and `lab.py shell [COMMAND]`."""

import argparse
import contextlib
import os
import pathlib
import select
import shutil
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator, Sequence

from lab import NETWORK, Guest, Lab, LabError, Process, TimedOut, interrupt_once


def _follow(process: Process, prefix: str, timeout: float) -> int:
    """Prints a program's output line by line until it ends; returns its exit code as a shell would."""
    deadline = time.monotonic() + timeout
    printed = 0
    while True:
        ended = process.poll() is not None or time.monotonic() > deadline
        output = process.output()
        complete = len(output) if ended else output.rfind("\n") + 1
        if complete > printed:
            lines = output[printed:complete].splitlines()
            print("".join(f"{prefix}{line}\n" for line in lines), end="", flush=True)
            printed = complete
        if ended:
            break
        time.sleep(0.05)
    try:
        code = process.wait(0)
    except TimedOut:
        print(f"lab: {process.guest.name}: killed after {timeout:.0f} s", file=sys.stderr)
        return 124
    return code if code >= 0 else 128 - code


def _run(guests: Sequence[Guest], command: str, cwd: pathlib.Path, timeout: float) -> int:
    """Runs a command in several guests at the same time; returns the highest exit code."""
    codes: list[int] = []

    def follow(process: Process, prefix: str) -> None:
        code = 125
        try:
            code = _follow(process, prefix, timeout)
        except LabError as error:
            print(f"lab: {error}", file=sys.stderr)
        codes.append(code)

    followers = [threading.Thread(target=follow, args=(guest.start(command, cwd=cwd),
                                                       f"{guest.name}| " if guests[1:] else ""))
                 for guest in guests]
    for follower in followers:
        follower.start()
    for follower in followers:
        follower.join()
    return max(codes)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _shell(guest: Guest, cwd: pathlib.Path) -> int:
    """Connects our terminal to a shell in the guest, until the shell ends."""
    columns, rows = shutil.get_terminal_size()
    shell = guest.start(f"exec <>/dev/hvc0 >&0 2>&0; stty sane rows {rows} columns {columns}; "
                        "exec setsid --ctty --wait bash -i",
                        env={"TERM": os.environ.get("TERM", "dumb")}, cwd=cwd)
    with _raw_terminal():
        while shell.poll() is None:
            readable, _, _ = select.select([sys.stdin, guest.screen], [], [], 0.2)
            if sys.stdin in readable:
                guest.screen.sendall(os.read(sys.stdin.fileno(), 4096))
            if guest.screen in readable:
                os.write(sys.stdout.fileno(), guest.screen.recv(65536))
    return shell.wait()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lab.py", description="The RDMA lab by hand.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run a shell command in all guests at the same time; each "
                                       f"has its number in NODE, and the address {NETWORK}.$NODE")
    run.add_argument("command")
    run.add_argument("--node", type=int, help="run it in this guest only")
    run.add_argument("--timeout", type=float, default=600, help="in seconds; default: 600")
    shell = verbs.add_parser("shell", help="a shell in one guest")
    shell.add_argument("command", nargs="?", help="a shell command that runs in the others")
    shell.add_argument("--node", type=int, default=1, help="the guest of the shell; default: 1")
    for verb in (run, shell):
        verb.add_argument("--guests", type=int, default=1, help="default: 1")
        verb.add_argument("--memory", default="2G", help="of each guest; default: 2G")
        verb.add_argument("--smp", type=int, default=2, help="processors of each; default: 2")
        verb.add_argument("--jvm-safe", action="store_true", help="for JIT compilers: one thread")
        verb.add_argument("--capture", type=pathlib.Path, metavar="FILE",
                          help="write what passes the first guest's end of the cable, as pcap")
    return parser.parse_args()


def main() -> int:
    options = _parse()
    if options.verb == "shell" and not sys.stdin.isatty():
        sys.exit("lab: a shell needs a terminal; run needs none")
    interrupt_once()
    here = pathlib.Path.cwd()
    try:
        began = time.monotonic()
        with Lab(options.guests, options.memory, options.smp, options.jvm_safe,
                 visible=[here]) as lab:
            print(f"lab: booted in {time.monotonic() - began:.1f} s", file=sys.stderr)
            with contextlib.ExitStack() as stack:
                if options.capture:
                    stack.enter_context(lab.guests[0].capture(options.capture))
                if options.verb == "run":
                    guests = [g for g in lab.guests if options.node in (None, g.node)]
                    return _run(guests, options.command, here, options.timeout)
                others = [g for g in lab.guests if g.node != options.node]
                if options.command:
                    for guest in others:
                        guest.start(options.command, cwd=here)
                return _shell(lab.guests[options.node - 1], here)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 125
    except KeyboardInterrupt:
        return 130
