#!/usr/bin/env python3
"""A node drops what comes faster than it answers, and answers again when the flood is over.

This counts what is dropped of a flood, so nothing else may slow the flood down.
"""

import contextlib
import socket
import struct
import subprocess
import sys
import time

import sidestep_harness
from sidestep_harness import SidestepTestCase
from test_stranger import SERVER, VERSION, address, nodes

# How long the flood takes depends on the machine, and the nodes have to live as long.
CLIENT = """
import select, socket, sys
stream = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
turn = 0
while not select.select([0], [], [], 0.005)[0]:
    stream.sendall(b"%06d" % turn)
    assert stream.recv(6, socket.MSG_WAITALL) == b"%06d" % turn
    turn += 1
"""


class Flood(SidestepTestCase):
    environment = {"SIDESTEP_ALLOW_NO_KEY": "yes"}  # so that nodes listen to everybody

    def test_a_flood_of_datagrams_is_dropped_and_then_the_next_is_answered(self):
        with self.part():
            server = self.start("server", [sys.executable, "-c", SERVER], True)
            client = self.start("client", [sys.executable, "-c", CLIENT, server.wait_listening()], True,
                                stdin=subprocess.PIPE)
            limit = time.monotonic() + 10
            while len(nodes()) < 2:
                self.assertLess(time.monotonic(), limit)
                time.sleep(0.01)
            time.sleep(0.3)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
                asker.connect(("127.0.0.1", 4798))
                asker.settimeout(0.1)

                def ask(number):
                    asker.send(struct.pack("<IHHQQQHHI", 0x32504453, VERSION, 1, number, 77, *([0] * 4))
                               + address(1) + address(2) + bytes(16 + 24 + 32))
                for batch in range(300):
                    for _ in range(100):
                        ask(batch)
                    time.sleep(0.002)
                # One datagram per millisecond is listened to again.
                limit = time.monotonic() + 20
                answered = False
                while not answered:
                    self.assertLess(time.monotonic(), limit)
                    ask(1000)
                    with contextlib.suppress(TimeoutError):
                        while not answered:
                            answered = struct.unpack_from("<HQ", asker.recv(1000), 6) == (2, 1000)
            client.process.stdin.close()
            for program in (client, server):
                program.wait(60)
            self.assert_all_over_engine(client, server, streams=1)
            both = [program.stats()["engine"] for program in (client, server)]
            self.assertGreater(sum(stats["datagrams_dropped"] for stats in both), 5_000)
            self.assertGreater(sum(stats["queries_answered"] for stats in both), 10_000)


if __name__ == "__main__":
    sidestep_harness.main()
