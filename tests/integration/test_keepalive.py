#!/usr/bin/env python3
"""The anchor of a stream that the engine carries shows signs of life that the program does not see.

A connection tracker is not available everywhere, so the tests use the kernel's count of the anchor's packets.
"""

import json
import os
import sys
import unittest

import sidestep_harness
from sidestep_harness import SidestepTestCase

PYTHON = sys.executable
IS_ROOT = os.geteuid() == 0

# Makes both ends of a connection; the programs that begin with this print what they find as JSON.
COMMON = """
import ctypes, json, select, socket, subprocess, sys, time
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
library = ctypes.CDLL(None)
def on_engine(end):
    return hasattr(library, "sidestep_carriers") and library.sidestep_carriers(end.fileno()) == 3
def exchange():
    for there, here in ((client, server), (server, client)):
        there.sendall(b"x")
        here.recv(1)
until = time.monotonic() + 10
exchange()
while hasattr(library, "sidestep_carriers") and not (on_engine(client) and on_engine(server)):
    assert time.monotonic() < until, "the stream has not left the kernel"
    exchange()
time.sleep(0.5)  # what was sent before over the kernel is acknowledged
OPTIONS = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE)] + [(socket.IPPROTO_TCP, name) for name in (
    socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)]
def shown(end):
    return [end.getsockopt(*option) for option in OPTIONS]
def segments(end):  # tcpi_segs_out
    return int.from_bytes(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)[136:140], "little")
"""

COUNT = COMMON + """
before = shown(client)
first = segments(client)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    exchange()
    time.sleep(0.05)
found = {"options": before, "same": before == shown(client) == shown(server), "engine": on_engine(client),
         "segments": segments(client) - first}
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1000)
found["set"] = shown(client)
server.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1000)
for end in (client, server):
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
found["on"] = shown(client)
first = segments(client)
time.sleep(float(sys.argv[1]))
found["own"] = segments(client) - first
found["kept"] = shown(client)
print(json.dumps(found))
"""

TIME_OUT = COMMON + """
client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
    client.setsockopt(socket.IPPROTO_TCP, name, 1)
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
try:
    client.settimeout(30)
    result = repr(client.recv(1))
except OSError as error:
    result = type(error).__name__ + " " + str(error.errno)
again = client.recv(1)
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
print(json.dumps([result, repr(again)]))
"""


class KeepAlive(SidestepTestCase):
    def run_program(self, name, source, *arguments, under, env=None):
        program = self.start(name, [PYTHON, "-c", source, *arguments], under, env=env)
        program.wait(60)
        return json.loads(program.stdout)

    def count(self, name, seconds, under, keepalive):
        return self.run_program(name, COUNT, str(seconds), under=under, env={"SIDESTEP_KEEPALIVE": str(keepalive)})

    def test_the_anchor_of_a_busy_stream_is_kept_alive(self):
        kernel = self.count("kernel", 0.5, False, 1)
        kept = self.count("kept", 4, True, 1)
        self.assertTrue(kept["engine"])
        self.assertGreaterEqual(kept["segments"], 2)
        for part in ("options", "set", "on", "kept"):
            self.assertEqual(kept[part], kernel[part], part)
        self.assertTrue(kept["same"])
        self.assertEqual(kept["own"], 0, "the program's own settings send no probe so soon")

    def test_it_can_be_left_silent(self):
        silent = self.count("silent", 3, True, 0)
        self.assertTrue(silent["engine"])
        self.assertEqual(silent["segments"], 0)

    @unittest.skipUnless(IS_ROOT, "takes the loopback interface down")
    def test_the_programs_own_keepalive_ends_the_stream_as_in_the_kernel(self):
        kernel = self.run_program("kernel", TIME_OUT, under=False)
        self.assertIn("TimeoutError 110", kernel[0])
        self.assertEqual(self.run_program("engine", TIME_OUT, under=True), kernel)


if __name__ == "__main__":
    sidestep_harness.main()
