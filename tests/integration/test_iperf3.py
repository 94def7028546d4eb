#!/usr/bin/env python3
"""iperf3 does what it does on the kernel, with its payload on the engine."""

import json

import sidestep_harness
from sidestep_harness import ALL_MODES, BOTH, KERNEL, SidestepTestCase

SECONDS = 2
SHAPES = {
    "one stream": [],
    "four streams": ["-P", "4"],
    "reverse": ["-R"],
    "both ways": ["--bidir"],
}


def payload(end):
    """Returns the bytes by direction as iperf3 counted them: (client to server, server to client).

    Each is (sent, received): bytes that are still in transit at the end have been sent but not received.
    """
    main = (end["sum_sent"]["bytes"], end["sum_received"]["bytes"])
    if "sum_sent_bidir_reverse" in end:
        return main, (end["sum_sent_bidir_reverse"]["bytes"],
                      end["sum_received_bidir_reverse"]["bytes"])
    if not end["streams"][0]["sender"]["sender"]:
        return (0, 0), main
    return main, (0, 0)


class Iperf3(SidestepTestCase):
    def run_pair(self, mode, arguments):
        port = sidestep_harness.free_port()
        server = self.start("iperf3-server", ["iperf3", "-s", "-1", "-p", port], mode.server)
        server.wait_listening(port)
        client = self.start("iperf3-client", ["iperf3", "-c", "127.0.0.1", "-p", port, "-J",
                                              "-t", SECONDS, *arguments], mode.client)
        client.wait(SECONDS + 30)
        server.wait(30)
        result = json.loads(client.stdout)
        self.assertNotIn("error", result)
        return server, client, result["end"]

    def check(self, shape):
        expected = None
        for mode in ALL_MODES:
            with self.part(mode=mode.name):
                server, client, end = self.run_pair(mode, SHAPES[shape])
                (up_sent, up_received), (down_sent, down_received) = payload(end)
                seen = {"streams": len(end["streams"]), "up": up_received > 0,
                        "down": down_received > 0}
                if mode is KERNEL:
                    expected = seen
                self.assertEqual(seen, expected)
                if mode is BOTH:
                    # iperf3 has one more stream than those it measures: its control connection.
                    streams = len(end["streams"]) + 1
                    self.assert_over_engine(client, up_sent, down_received)
                    self.assert_over_engine(server, down_sent, up_received)
                    for program in (client, server):
                        self.assertEqual(program.stats()["streams"]["total"], streams)
                else:
                    self.assert_on_kernel(server)
                    self.assert_on_kernel(client)

    def test_one_stream(self):
        self.check("one stream")

    def test_four_streams(self):
        self.check("four streams")

    def test_reverse(self):
        self.check("reverse")

    def test_both_ways(self):
        self.check("both ways")


if __name__ == "__main__":
    sidestep_harness.main()
