#!/usr/bin/env python3
"""Under a clock that stands still, a thread that waits uses no processor time and is woken."""

import pathlib
import subprocess
import sysconfig
import time
import unittest

import sidestep_harness
from sidestep_harness import SidestepTestCase, preload_library

FAKETIME = next((path for path in (pathlib.Path("/usr/lib") / sysconfig.get_config_var("MULTIARCH")).glob(
    "faketime/libfaketime.so.*")), None)

PROGRAM = """
import resource, socket, sys, threading
with socket.create_server(("127.0.0.1", 0)) as listening:
    one = socket.create_connection(listening.getsockname())
    other, _ = listening.accept()

def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

for _ in range(20000):
    one.sendall(b"x"); other.recv(1); other.sendall(b"y"); one.recv(1)
before = used()
reader = threading.Thread(target=lambda: print(one.recv(1).decode(), used() - before, flush=True))
reader.start()
print("waits", flush=True)
sys.stdin.readline()
other.sendall(b"z")
reader.join()
"""


class StoppedClock(SidestepTestCase):
    @unittest.skipIf(FAKETIME is None, "libfaketime is not installed")
    def test_a_thread_that_waits_sleeps(self):
        program = self.start("program", ["env", f"LD_PRELOAD={preload_library()}:{FAKETIME}",
                                         "FAKETIME=2020-01-01 00:00:00", "python3", "-c", PROGRAM], True,
                             stdin=subprocess.PIPE)
        program.wait_output("waits")
        time.sleep(3)
        program.process.stdin.write(b"\n")
        program.process.stdin.close()
        program.wait(20)
        byte, seconds = program.stdout.split()[-2:]
        self.assertEqual(byte, "z")
        self.assertLess(float(seconds), 1)
        self.assertGreater(program.engine_share(), 0.9)


if __name__ == "__main__":
    sidestep_harness.main()
