#!/usr/bin/env python3
"""The library takes few descriptors, and none per thread or stream."""

import json
import os
import socket
import sys
import time

import sidestep_harness
from sidestep_harness import BOTH, KERNEL, SidestepTestCase, build_dir

PROGRAM = build_dir() / "programs/sleepers"
WAYS = ("read", "recv", "timed", "poll", "both")
# For a process that is connected to no other: what the engine needs for its threads and for program threads
# that sleep.
MOST = 16
# For a process that is joined to no other; the process that hands out the directory has one more.
MOST_UNJOINED = 5
IDLE = """
import socket, sys
stream = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
stream.recv(1)
"""


class Descriptors(SidestepTestCase):
    def wait_for_bytes(self, way, threads, mode, *more):
        with self.part(way=way, threads=threads, mode=mode.name, more=more):
            program = self.start("sleepers", [PROGRAM, "wait", way, threads, *more], mode.client)
            program.wait(120)
            if mode is BOTH and way != "epoll":  # without one for the set, it goes to the kernel
                self.assertEqual(program.stats()["streams"]["engine"], 2 * threads)
            seen = json.loads(program.stdout)
            self.assertEqual(seen["got"], threads)
            self.assertEqual(seen["meanwhile"], seen["before"])
            self.assertEqual(seen["after"], seen["before"])
            return seen

    def check(self, way):
        more = {}
        for threads in (1, 1000):
            kernel = self.wait_for_bytes(way, threads, KERNEL)
            engine = self.wait_for_bytes(way, threads, BOTH)
            more[threads] = engine["before"] - kernel["before"]
            self.assertEqual(engine["left"] - kernel["left"], more[threads])
        self.assertEqual(more[1], more[1000])
        self.assertLessEqual(more[1], MOST)

    def test_processes_that_are_joined_to_none(self):
        with self.part(), socket.create_server(("127.0.0.1", 0)) as listener:
            def start(under):
                program = self.start("idle", [sys.executable, "-c", IDLE, listener.getsockname()[1]], under)
                program.wait_output("^ready$")
                return program, listener.accept()[0]

            def count(program):
                return len(os.listdir(f"/proc/{program.pid}/fd"))

            plain = start(False)
            others = [start(True) for _ in range(8)]
            limit = time.monotonic() + 10
            while True:
                more = sorted(count(program) - count(plain[0]) for program, _ in others)
                if more == [MOST_UNJOINED] * 7 + [MOST_UNJOINED + 1]:
                    break
                self.assertLess(time.monotonic(), limit, more)
                time.sleep(0.1)
            for program, end in (plain, *others):
                end.close()
                program.wait(30)
            for program, _ in others:
                self.assertEqual(program.stats()["streams.total"], 1)

    def test_threads_in_read(self):
        self.check("read")

    def test_threads_in_recv(self):
        self.check("recv")

    def test_threads_in_recv_with_a_timeout(self):
        self.check("timed")

    def test_threads_in_poll(self):
        self.check("poll")

    def test_threads_in_poll_with_other_descriptors(self):
        self.check("both")

    def test_threads_wake_although_no_descriptor_is_free(self):
        for way in (*WAYS, "epoll"):
            for mode in (KERNEL, BOTH):
                self.wait_for_bytes(way, 8, mode, "full")

    def test_a_server_with_a_thread_for_each_connection_has_its_descriptors(self):
        connections, limit = 180, 200
        for mode in (KERNEL, BOTH):
            with self.part(mode=mode.name):
                server = self.start("server", [PROGRAM, "server", connections, limit], mode.server)
                client = self.start("client", [PROGRAM, "client", server.wait_listening(), connections], mode.client)
                client.wait(120)
                server.wait(60)
                self.assertEqual(json.loads(client.stdout), {"echoes": 3 * connections})
                self.assertEqual(json.loads(server.stdout.splitlines()[-1]), {"refused": 0})
                if mode is BOTH:
                    self.assertEqual(server.stats()["streams"]["engine"], connections)


if __name__ == "__main__":
    sidestep_harness.main()
