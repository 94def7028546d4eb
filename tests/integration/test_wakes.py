#!/usr/bin/env python3
"""Threads of several processes sleep and wake each other: no wake-up is lost.

Meanwhile processes are stopped and killed, and threads get signals and are canceled.
"""

import json
import sys

import sidestep_harness
from sidestep_harness import BOTH, FULL, KERNEL, SidestepTestCase, build_dir

SECONDS = 60 if FULL else 4
RUNS = ((2, 12, {}), (4, 3, {}), (2, 6, {"SIDESTEP_SPIN_US": "0"}))  # processes, streams between two of them
OLD_STREAMS = 8
# Busy with one client's message while the others send.
SERVER = """
import selectors, socket
listener = socket.create_server(("127.0.0.1", 0))
print("listening", listener.getsockname()[1], flush=True)
loop = selectors.DefaultSelector()
loop.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in loop.select():
        if key.fileobj is listener:
            loop.register(listener.accept()[0], selectors.EVENT_READ)
        elif data := key.fileobj.recv(100):
            if data == b"end":
                raise SystemExit
            sum(range(1000))
            key.fileobj.sendall(data)
        else:
            loop.unregister(key.fileobj)
            key.fileobj.close()
"""
CLIENT = """
import selectors, socket, sys, time
port, seconds, old_streams = map(int, sys.argv[1:])
loop = selectors.DefaultSelector()
def connect():
    stream = socket.create_connection(("127.0.0.1", port))
    loop.register(stream, selectors.EVENT_READ)
    return stream
def round_trip(streams):
    for stream in streams:
        stream.sendall(b"x" * 64)
    left = {stream.fileno() for stream in streams}
    while left:
        for key, _ in loop.select():
            left.remove(key.fd)  # each is told of once
            assert key.fileobj.recv(100) == b"x" * 64
old = [connect() for _ in range(old_streams)]
end = time.monotonic() + seconds
connects = trips = 0
while time.monotonic() < end:
    young = connect()
    round_trip([young])
    loop.unregister(young)
    young.close()
    connects += 1
    for _ in range(50):
        round_trip(old)
        trips += 1
old[0].sendall(b"end")
print(connects, trips)
"""


class Wakes(SidestepTestCase):
    def test_no_wake_up_is_lost(self):
        for seed, (processes, streams, env) in enumerate(RUNS):
            for mode in (KERNEL, BOTH) if not env else (BOTH,):
                with self.part(processes=processes, streams=streams, env=env, mode=mode.name):
                    program = self.start("wakes", [build_dir() / "programs/wakes", processes, streams, SECONDS, seed],
                                         mode.client, env=env)
                    program.wait(SECONDS + 200)
                    seen = json.loads(program.stdout)
                    for word in ("hops", "cancelled", "killed"):
                        self.assertGreater(seen.pop(word), 0, word)
                    self.assertEqual(seen, {"stuck": 0, "kernel": 0, "wrong": 0, "failed": 0})
                    if mode is KERNEL:
                        self.assert_on_kernel(program)
                    else:
                        self.check_carriers(program)

    def test_what_is_polled_anyway_is_not_rung_for(self):
        """New streams keep coming meanwhile, and the process has to see each of them move."""
        for mode in (KERNEL, BOTH):
            with self.part(mode=mode.name):
                server = self.start("server", [sys.executable, "-c", SERVER], mode.server)
                client = self.start("client", [sys.executable, "-c", CLIENT, server.wait_listening(), 2, OLD_STREAMS],
                                    mode.client)
                for program in (client, server):
                    program.wait(60)
                connects, trips = map(int, client.stdout.split())
                for program in (server, client) if mode is BOTH else ():
                    self.assertGreater(program.engine_share(), 0.5)
                    engine = program.stats()["engine"]
                    messages = connects + trips * OLD_STREAMS
                    self.assertLess(engine["doorbells"], engine["parks"] + 2 * connects + messages / 20)
                if mode is KERNEL:
                    self.assert_on_kernel(server)

    def check_carriers(self, program):
        workers = [stats for stats in program.all_stats().values() if stats["streams"]["total"] != 0]
        self.assertGreater(len(workers), 0)
        mean = sum(sum(stats["bytes"]["rx"].values()) for stats in workers) / len(workers)
        for stats in workers:
            received = stats["bytes"]["rx"]
            # A process that has replaced another one at the end has had no time to get much over the engine.
            if sum(received.values()) > mean / 10:
                self.assertGreater(received["engine"], received["kernel"])
            # The last streams are young if a process was replaced at the end.
            self.assertGreater(stats["streams"]["engine"], 0)
            # The peer's timer rescues a sleeper if its waker is stopped between the write and the wake-up,
            # which is rare.
            self.assertLess(stats["engine"]["rescues"], 10)


if __name__ == "__main__":
    sidestep_harness.main()
