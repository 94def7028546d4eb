#!/usr/bin/env python3
"""A checked transfer is worth nothing unless it fails when it should; over a bad wire it does."""

import json
import socket
import threading

import sidestep_harness
from sidestep_harness import SidestepTestCase, java, pair


class BadWire(threading.Thread):
    """A relay between client and server that corrupts one place in what the server sends."""

    PLACE = 300_000

    def __init__(self, server_port, spoil):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.server_port = server_port
        self.spoil = spoil

    def relay(self, source, target, spoil):
        at = 0
        try:
            while data := source.recv(65536):
                if spoil and at <= self.PLACE < at + len(data):
                    data = spoil(data, self.PLACE - at)
                    if data is None:
                        break
                at += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def run(self):
        client, _ = self.listener.accept()
        server = socket.create_connection(("127.0.0.1", self.server_port))
        with client, server, self.listener:
            up = threading.Thread(target=self.relay, args=(client, server, None), daemon=True)
            up.start()
            self.relay(server, client, self.spoil)
            up.join(10)


SPOILERS = {
    "changed byte": lambda data, i: data[:i] + bytes([data[i] ^ 1]) + data[i + 1:],
    "lost byte": lambda data, i: data[:i] + data[i + 1:],
    "repeated byte": lambda data, i: data[:i] + data[i:i + 1] + data[i:],
    "early end": lambda data, i: None,
}


class OverABadWire(SidestepTestCase):
    def run_over_wire(self, spoil, server_argv, client_argv):
        """Starts both ends and returns the client, not waited for. `client_argv`: a function of the port."""
        server = self.start("server", server_argv)
        wire = BadWire(server.wait_listening(), spoil)
        wire.start()
        client = self.start("client", client_argv(wire.port))
        client.wait(60, code=None)
        server.wait(60, code=None)
        wire.join(30)
        self.assertFalse(wire.is_alive())
        return client

    def test_the_java_check_fails(self):
        for name, spoil in SPOILERS.items():
            for kind in ("blocking", "selector"):
                with self.part(wire=name, kind=kind):
                    client = self.run_over_wire(
                        spoil, java("Check", "server", kind, 0, 1),
                        lambda port: java("Check", "client", kind, "127.0.0.1", port, 1,
                                          4 << 20, 7))
                    self.assertEqual(client.process.returncode, 1)
                    self.assertIn("FAILED", client.stderr)

    def test_pair_fails(self):
        for name, spoil in SPOILERS.items():
            for way in ("block", "epoll-et"):
                with self.part(wire=name, way=way):
                    client = self.run_over_wire(
                        spoil, [pair(), "server", "--mode", way],
                        lambda port: [pair(), "client", "--mode", way, "--port", port,
                                      "--bytes", 4 << 20])
                    received = json.loads(client.stdout.splitlines()[-1])["connections"][0]["rx"]
                    if name == "early end":
                        self.assertEqual(client.process.returncode, 4)
                        self.assertIn(received["outcome"], ("short_eof", "reset"))
                    else:
                        self.assertEqual(client.process.returncode, 1)
                        self.assertEqual(received["outcome"], "corrupt")


if __name__ == "__main__":
    sidestep_harness.main()
