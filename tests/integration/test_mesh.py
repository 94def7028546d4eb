#!/usr/bin/env python3
"""Many processes on one host connect to each other at the same time."""

import os
import signal
import subprocess
import sys
import time

import sidestep_harness
from sidestep_harness import SidestepTestCase, build_dir

COUNT = 100
PORT = 7200
SIZE = 4096
ROUNDS = 3
PAUSE = 6
GONE = "the peer node has gone"
# Some nodes have ended already while others still connect to them. On a slow machine, every node ends before
# all of its streams have had an answer.
MOVING = {"asking for the other end", "not asked for by the other end", GONE,
          "it had ended before it could move", "the peer did not move it"}

STRANGERS = 600  # more questions than a node that does not read them has room for
NODE = """
import socket, sys
if sys.argv[1] == "server":
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    print("listening", listener.getsockname()[1], flush=True)
    streams = [listener.accept()[0] for _ in range(int(sys.argv[2]))]
else:
    port, count = map(int, sys.argv[1:])
    streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
print("connected", flush=True)
for stream in streams:
    stream.recv(1)
"""


# The server accepts its last stream only when its standard input ends, and talks over it.
LAST = """
import socket, sys, time
if sys.argv[1] == "server":
    listener = socket.create_server(("127.0.0.1", 0))
    print("listening", listener.getsockname()[1], flush=True)
    streams = [listener.accept()[0] for _ in range(int(sys.argv[2]))]
    print("connected", flush=True)
    sys.stdin.read()
    last = listener.accept()[0]
    print("accepted", flush=True)
    for _ in range(200):
        last.sendall(b"x")
        assert last.recv(1) == b"x"
        time.sleep(0.005)
else:
    stream = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    print("connected", flush=True)
    while data := stream.recv(1):
        stream.sendall(data)
"""
NOWHERE = "no node on the peer's host holds the other end"


class StoppedNode(SidestepTestCase):
    def node(self, name, *arguments, under=True, program=NODE, **options):
        return self.start(name, [sys.executable, "-c", program, *map(str, arguments)], under,
                          **options)

    def test_no_answer_counts_for_two_questions(self):
        # One node answers late and another ends, while the node that holds the other end is still silent.
        with self.part():
            reading, writing = os.pipe()
            server = self.node("server", "server", 2, program=LAST, stdin=reading)
            os.close(reading)
            port = server.wait_listening()
            late, ends = (self.node(name, port, 1) for name in ("late", "ends"))
            server.wait_output("^connected$")
            holder = self.node("holder", port, program=LAST)
            for node in (late, ends, holder):
                node.wait_output("^connected$")
                node.process.send_signal(signal.SIGSTOP)
            os.close(writing)
            server.wait_output("^accepted$")
            for step in (lambda: None, ends.kill, lambda: late.process.send_signal(signal.SIGCONT)):
                step()
                time.sleep(0.5)
            holder.process.send_signal(signal.SIGCONT)
            for node in (server, holder, late):
                node.wait(30)
            self.assertNotIn(NOWHERE, server.stats()["kernel_reasons"])
            self.assertEqual(holder.stats()["streams.engine"], 1)

    def test_a_node_that_does_not_answer_is_asked_once(self):
        with self.part():
            server = self.node("server", "server", STRANGERS + 2)
            port = server.wait_listening()
            stopped, other = (self.node(name, port, 1) for name in ("stopped", "other"))
            for node in (stopped, other):
                node.wait_output("^connected$")
            stopped.process.send_signal(signal.SIGSTOP)
            strangers = self.node("strangers", port, STRANGERS, under=False)
            for program in (server, strangers):
                program.wait_output("^connected$")
            # Longer than the 8.4 s for which the node looks for the strangers' ends; a repeated question
            # comes within 0.3 s.
            with self.assertRaises(subprocess.TimeoutExpired):
                server.process.wait(10)
            stopped.process.send_signal(signal.SIGCONT)
            stopped.stop()
            for node in (strangers, other):
                node.stop()
            server.wait(30)
            stats = server.stats()
            reasons = stats["kernel_reasons"]
            self.assertEqual(reasons.pop(NOWHERE), STRANGERS)
            # The stopped node may have begun to answer when it ended.
            self.assertLessEqual(set(reasons), {GONE})
            # Both nodes are asked about each stranger's stream, and one of them again if a node has ended.
            self.assertLessEqual(stats["engine"]["queries_sent"], 3 * STRANGERS)


class Mesh(SidestepTestCase):
    def run_nodes(self, under):
        nodes = [self.start(f"node {me}", [
            sys.executable, str(build_dir() / "programs" / "mesh_node.py"),
            *map(str, (me, COUNT, PORT, SIZE, ROUNDS, PAUSE))], under,
            env={"SIDESTEP_ORB_SIZE": "64K"}) for me in range(COUNT)]
        for node in nodes:
            node.wait(200)
            self.assertIn("all right", node.stdout)
        return nodes

    def test_a_hundred_nodes_all_to_all(self):
        with self.part(under=False):
            self.run_nodes(False)
        with self.part(under=True):
            every = [node.stats() for node in self.run_nodes(True)]
            for stats in every:
                # How many streams move in these seconds depends on the machine; none was given up.
                self.assertLessEqual(set(stats["kernel_reasons"]), MOVING)
                self.assertEqual(stats["switches.down"], 0)
                # In half of the cases both nodes begin at once, and still make one connection per pair and
                # lane. A pair has one stream, and makes its first lane before the lane of that stream.
                self.assertLessEqual(stats["engine"]["connections_opened"], 2 * (COUNT - 1))
            self.assertGreater(sum(stats["streams.engine"] for stats in every),
                               COUNT * (COUNT - 1) // 4)


if __name__ == "__main__":
    sidestep_harness.main()
