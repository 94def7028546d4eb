#!/usr/bin/env python3
"""The ping-pong and throughput programs of sockperf and Java run to their end and find nothing wrong."""

import re

import sidestep_harness
from sidestep_harness import ALL_MODES, BOTH, SidestepTestCase, java

# sockperf has room for a million pings a second, unless it is told to expect more, and gives up beyond that.
MANY_PINGS = "--mps=5000000"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def number(pattern, text):
    match = re.search(pattern, COLOURS.sub("", text))
    return match and int(match.group(1))


class Sockperf(SidestepTestCase):
    def run_pair(self, mode, test, *arguments, server_arguments=()):
        port = sidestep_harness.free_port()
        address = ["--tcp", "-i", "127.0.0.1", "-p", port]
        server = self.start("sockperf-server",
                            ["sockperf", "sr", *address, *server_arguments], mode.server)
        server.wait_listening(port)
        client = self.start("sockperf-client", ["sockperf", test, *address, "-t", "1", *arguments],
                            mode.client)
        client.wait(40)
        server.stop()
        return server, client, client.stdout + client.stderr

    def check_ping_pong(self, *arguments, size=("-m", "64"), smallest=64, server_arguments=()):
        for mode in ALL_MODES:
            with self.part(mode=mode.name):
                server, client, text = self.run_pair(mode, "pp", MANY_PINGS, *size, *arguments,
                                                     server_arguments=server_arguments)
                seen = number(r"Valid Duration\].*ReceivedMessages=(\d+)", text)
                self.assertTrue(seen, "no message came back")
                for fault in ("dropped", "duplicated", "out-of-order"):
                    self.assertEqual(number(rf"# {fault} messages = (\d+)", text), 0)
                self.check_carrier(mode, server, client, smallest * seen,
                                   smallest * seen)

    def check_carrier(self, mode, server, client, tx, rx):
        if mode is BOTH:
            self.assert_over_engine(client, tx, rx, streams=1)
            self.assert_over_engine(server, rx, tx, streams=1)
        else:
            self.assert_on_kernel(server)
            self.assert_on_kernel(client)

    def test_ping_pong(self):
        self.check_ping_pong()

    def test_ping_pong_non_blocking(self):
        self.check_ping_pong("--nonblocked", server_arguments=["--nonblocked"])

    def test_ping_pong_checks_the_bytes_of_messages_of_many_sizes(self):
        self.check_ping_pong("--data-integrity", size=("-m", "2000", "-r", "1900"), smallest=100)

    def test_throughput(self):
        for mode in ALL_MODES:
            with self.part(mode=mode.name):
                server, client, text = self.run_pair(mode, "tp", "-m", "64")
                sent = number(r"Total of (\d+) messages sent", text)
                self.assertTrue(sent)
                self.check_carrier(mode, server, client, 64 * sent, 0)


class JavaPrograms(SidestepTestCase):
    def run_pair(self, mode, program, kind, *arguments):
        server = self.start("server", java(program, "server", kind, 0), mode.server)
        client = self.start("client", java(program, "client", kind, "127.0.0.1",
                                           server.wait_listening(), *arguments), mode.client)
        client.wait(60)
        server.wait(60)
        return server, client

    def check_carrier(self, mode, server, client, tx, rx):
        if mode is BOTH:
            self.assert_over_engine(client, tx, rx, streams=1)
            self.assert_over_engine(server, rx, tx, streams=1)
        else:
            self.assert_on_kernel(server)
            self.assert_on_kernel(client)

    def test_ping_pong(self):
        for kind in ("blocking", "channel", "selector"):
            for mode in ALL_MODES:
                with self.part(kind=kind, mode=mode.name):
                    server, client = self.run_pair(mode, "PingPong", kind, 0.5, 64)
                    rounds = number(r"rounds=(\d+)", client.stdout)
                    self.assertGreater(rounds, 0)
                    self.check_carrier(mode, server, client, 64 * rounds, 64 * rounds)

    def test_stream(self):
        for kind in ("blocking", "channel"):
            for mode in ALL_MODES:
                with self.part(kind=kind, mode=mode.name):
                    server, client = self.run_pair(mode, "Stream", kind, 1)
                    sent = number(r"bytes=(\d+)", client.stdout)
                    self.assertEqual(number(r"bytes=(\d+)", server.stdout), sent)
                    # In one second, what the kernel carried before the switch still matters.
                    self.check_carrier(mode, server, client, int(0.98 * sent), 0)


if __name__ == "__main__":
    sidestep_harness.main()
