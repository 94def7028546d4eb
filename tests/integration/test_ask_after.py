#!/usr/bin/env python3
"""SIDESTEP_ASK_AFTER: streams that end soon are left alone, and those that last leave the kernel."""

import sys

import sidestep_harness
from sidestep_harness import BOTH, KERNEL, SidestepTestCase

SHORT = 50
LATER_MS = 2000
QUESTIONS = 5000

# `server COUNT` echoes COUNT streams, one after the other. `client PORT COUNT` ends all but one of its
# streams after one answer, and uses the last one until it has left the kernel, if it can.
ECHO = """
import ctypes, socket, sys, time
role, number = sys.argv[1], int(sys.argv[2])
if role == "server":
    listener = socket.create_server(("127.0.0.1", 0))
    print("listening", listener.getsockname()[1], flush=True)
    for _ in range(number):
        stream, _ = listener.accept()
        while data := stream.recv(65536):
            stream.sendall(data)
        stream.close()
    sys.exit(0)
carriers = getattr(ctypes.CDLL(None), "sidestep_carriers", None)
def ask(stream, n):
    piece = b"%1000d" % n
    stream.sendall(piece)
    assert stream.recv(1000, socket.MSG_WAITALL) == piece, n
for n in range(int(sys.argv[3]) - 1):
    with socket.create_connection(("127.0.0.1", number)) as stream:
        ask(stream, n)
stream = socket.create_connection(("127.0.0.1", number))
limit = time.monotonic() + 60
n = 0
while n < 10 or carriers and carriers(stream.fileno()) != 3 and time.monotonic() < limit:
    ask(stream, n)
    time.sleep(0.01)
    n += 1
for n in range(100):
    ask(stream, n)
print("all right")
"""

# Waits before its first question until the period in which a new stream is expected to move has passed.
ASK_LATER = """
import socket, sys, time
stream = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
time.sleep(3)
for n in range(int(sys.argv[2])):
    stream.sendall(b"%1000d" % n)
    assert stream.recv(1000, socket.MSG_WAITALL) == b"%1000d" % n
"""


class AskAfter(SidestepTestCase):
    def test_only_what_stays_leaves_the_kernel(self):
        for mode in (KERNEL, BOTH):
            with self.part(mode=mode.name):
                env = {"SIDESTEP_ASK_AFTER": str(LATER_MS)} if mode is BOTH else None
                server = self.start("server", [sys.executable, "-c", ECHO, "server", SHORT + 1],
                                    mode.server, env=env)
                client = self.start("client", [sys.executable, "-c", ECHO, "client",
                                               server.wait_listening(), SHORT + 1], mode.client,
                                    env=env)
                client.wait(120)
                server.wait(30)
                self.assertEqual(client.stdout.strip(), "all right")
                if mode is KERNEL:
                    continue
                for program in (server, client):
                    stats = program.stats()
                    self.assertEqual(stats["streams"]["total"], SHORT + 1)
                    self.assertGreaterEqual(stats["streams"]["engine"], 1)
                    # If the machine loses a few seconds, more streams ask.
                    self.assertLess(stats["streams"]["engine"], SHORT // 2)
                    self.assertGreaterEqual(stats["bytes"]["tx"]["engine"], 100 * 1000)
                self.assertLess(server.stats()["engine"]["queries_sent"], SHORT // 2)

    def test_a_process_that_is_joined_to_none_does_not_poll_for_ever(self):
        with self.part():
            server = self.start("server", [sys.executable, "-c", ECHO, "server", 1], False)
            client = self.start("client", [sys.executable, "-c", ASK_LATER, server.wait_listening(), QUESTIONS], True)
            client.wait(60)
            server.wait(30)
            stats = client.stats()
            self.assertEqual(stats["streams.engine"], 0)
            self.assertLess(stats["engine"]["polls"], QUESTIONS / 2)


if __name__ == "__main__":
    sidestep_harness.main()
