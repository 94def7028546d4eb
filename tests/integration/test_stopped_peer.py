#!/usr/bin/env python3
"""A peer that is stopped delays no call that need not wait for it, and goes on where it was."""

import os
import signal
import subprocess

import sidestep_harness
from sidestep_harness import BOTH, KERNEL, SidestepTestCase

ALLOWED = 1  # seconds, as the machine may be busy with other work; a call that waits takes 3 or more

PEER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as stream:
    while data := stream.recv(1000):
        stream.sendall(data)
"""

PROGRAM = """
import os, socket, sys, time
with socket.create_server(("127.0.0.1", 0)) as listening:
    print("listening", listening.getsockname()[1], flush=True)
    stream, _ = listening.accept()

def exchange(count):
    for number in range(count):
        piece = f"{number:8}".encode()
        stream.sendall(piece)
        while piece:
            got = stream.recv(8)
            assert got and piece.startswith(got), (got, piece)
            piece = piece[len(got):]

def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid

exchange(3000)
print("moved", flush=True)
for line in sys.stdin:
    start, cpu = time.monotonic(), time.process_time()
    if line == "fork\\n":
        os.waitpid(fork(), 0)
    elif line == "exchange\\n":
        exchange(300)
    print("took", time.monotonic() - start, time.process_time() - cpu, flush=True)
"""


class StoppedPeer(SidestepTestCase):
    def begin(self, mode):
        self.program = self.start("program", ["python3", "-c", PROGRAM], mode.server, stdin=subprocess.PIPE)
        self.peer = self.start("peer", ["python3", "-c", PEER, self.program.wait_listening()], mode.client)
        self.program.wait_output("moved")
        os.kill(self.peer.pid, signal.SIGSTOP)

    def call(self, what):
        """Returns the elapsed time and the processor time of a call, in seconds."""
        lines = self.program.stdout.count("took")
        self.program.process.stdin.write(f"{what}\n".encode())
        self.program.process.stdin.flush()
        self.program.wait_output(rf"(?s)(took.*){{{lines + 1}}}\n")
        return [float(number) for number in self.program.stdout.splitlines()[-1].split()[1:]]

    def end(self):
        self.program.process.stdin.close()
        self.program.wait(20)

    def test_fork(self):
        for mode in (KERNEL, BOTH):
            with self.part(mode=mode.name):
                self.begin(mode)
                for _ in range(3):
                    self.assertLess(max(self.call("fork")), ALLOWED)
                os.kill(self.peer.pid, signal.SIGCONT)
                self.call("exchange")
                self.assertLess(max(self.call("fork")), ALLOWED)
                self.call("exchange")
                self.end()
                self.peer.wait(10)

    def test_the_end_of_the_process(self):
        for mode in (KERNEL, BOTH):
            with self.part(mode=mode.name):
                self.begin(mode)
                self.end()
                os.kill(self.peer.pid, signal.SIGCONT)
                self.peer.wait(10)


if __name__ == "__main__":
    sidestep_harness.main()
