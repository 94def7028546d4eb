#!/usr/bin/env python3
"""Nodes find each other's streams in a directory that one of them hands out, and go on without it."""

import contextlib
import os
import pathlib
import signal
import socket
import sys
import time
import unittest

import sidestep_harness
from sidestep_harness import SidestepTestCase, protocol_version

IS_ROOT = os.geteuid() == 0
NOBODY = 65534

# `server` echoes one stream after the other until its standard input ends. `client PORT` goes on until its
# stream has left the kernel and then ends, or gives up. `idle PORT` only keeps a stream open.
NODE = """
import ctypes, select, socket, sys, time
role = sys.argv[1]
carriers = ctypes.CDLL(None).sidestep_carriers
if role == "server":
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    print("listening", listener.getsockname()[1], flush=True)
    while sys.stdin not in (ready := select.select([listener, sys.stdin], [], [])[0]):
        stream = listener.accept()[0]
        while data := stream.recv(100):
            stream.sendall(data)
        stream.close()
    sys.exit(0)
stream = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
print("connected", flush=True)
if role == "idle":
    sys.stdin.read()
    sys.exit(0)
limit = time.monotonic() + 20
while carriers(stream.fileno()) != 3 and time.monotonic() < limit:
    stream.sendall(b"x")
    assert stream.recv(1) == b"x"
    time.sleep(0.005)
for turn in range(100):
    stream.sendall(b"%04d" % turn)
    assert stream.recv(4, socket.MSG_WAITALL) == b"%04d" % turn
"""
# Takes the socket names of the directory's holder, as the given user.
SQUAT = """
import os, socket, sys, time
names = []
version, user, me, count = map(int, sys.argv[1:])
os.setuid(me)
for seat in range(count):
    names.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    names[-1].bind(f"\\0sidestep.{version}.directory.{user}.{seat}")
    names[-1].listen(100)
print("has them", flush=True)
time.sleep(60)
"""


def file_of(program):
    """Returns the inode number of the directory that a process has mapped, or None."""
    for line in pathlib.Path(f"/proc/{program.pid}/maps").read_text().splitlines():
        if "sidestep-directory" in line:
            return line.split()[4]
    return None


def is_handed_out():
    """True if somebody listens under the name of the directory's holder."""
    name = f"@sidestep.{protocol_version()}.directory.{os.getuid()}.0"
    with open("/proc/net/unix", encoding="ascii", errors="replace") as names:
        return any(line.endswith(f" {name}\n") for line in names)


def descriptors(program):
    return len(os.listdir(f"/proc/{program.pid}/fd"))


class DirectoryTest(SidestepTestCase):
    def node(self, name, *arguments):
        """Starts a node, and returns it with its standard input; it runs until that is closed."""
        reading, writing = os.pipe()
        program = self.start(name, [sys.executable, "-c", NODE, *map(str, arguments)], True, stdin=reading)
        os.close(reading)
        return program, open(writing, "wb", buffering=0)

    def await_that(self, what, found, seconds=20):
        limit = time.monotonic() + seconds
        while not (result := found()):
            self.assertLess(time.monotonic(), limit, what)
            time.sleep(0.02)
        return result

    def client(self, port):
        """Runs a client, and checks that it was joined to the server."""
        program, end = self.node("client", "client", port)
        with end:
            program.wait(60)
        self.assert_all_over_engine(program, streams=1)

    def server(self):
        server, end = self.node("server", "server")
        return server, end, server.wait_listening()

    def idle(self, port):
        """Starts a node that is only connected to `port` and sends nothing."""
        program, end = self.node("idle", "idle", port)
        program.wait_output("^connected$")
        return program, end

    @contextlib.contextmanager
    def holder(self):
        """Starts the first node, which hands out the directory. Yields it, its input, the file, a port."""
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            first, first_end = self.idle(port)
            yield first, first_end, self.await_that("a directory", lambda: file_of(first)), port

    def test_only_those_are_asked_who_have_an_end(self):
        with self.part():
            server, server_end, port = self.server()
            with socket.create_server(("127.0.0.1", 0)) as other:
                strangers = [self.idle(other.getsockname()[1]) for _ in range(8)]
                for stranger, _ in strangers:
                    self.await_that("a directory", lambda one=stranger: file_of(one))
                before = [descriptors(stranger) for stranger, _ in strangers]
                for _ in range(5):
                    self.client(port)
                self.assertEqual([descriptors(stranger) for stranger, _ in strangers], before)
                self.assertEqual(len({file_of(stranger) for stranger, _ in strangers}), 1)
                for stranger, end in strangers:
                    end.close()
                    stranger.wait(30)
                    stats = stranger.stats()["engine"]
                    self.assertEqual((stats["queries_sent"], stats["queries_answered"]), (0, 0))
            server_end.close()
            server.wait(30)
            self.assertEqual(server.stats()["engine"]["queries_sent"], 5)

    def test_another_hands_it_on(self):
        with self.part():
            with self.holder() as (first, first_end, file, other):
                server, server_end, port = self.server()
                self.client(port)
                self.assertEqual(file_of(server), file)
                first.kill()
                first_end.close()
                for _ in range(3):  # the name is free, or has been taken over
                    newcomer, newcomer_end = self.idle(other)
                    self.await_that("the same directory", lambda one=newcomer: file_of(one) == file)
                    self.client(port)
                    newcomer.kill()
                    newcomer_end.close()
                    time.sleep(0.3)
            server_end.close()
            server.wait(30)

    def test_a_second_one_takes_the_place_of_the_first(self):
        # The maker of the second directory cannot ask any node that has the first.
        with self.part():
            with self.holder() as (first, first_end, file, other):
                server, server_end, port = self.server()
                self.client(port)
                server.process.send_signal(signal.SIGSTOP)
                first.kill()
                first_end.close()
                second, second_end = self.idle(other)
                new = self.await_that("another directory", lambda: file_of(second))
                self.assertNotEqual(new, file)
                server.process.send_signal(signal.SIGCONT)
                self.await_that("the server changes", lambda: new in
                                pathlib.Path(f"/proc/{server.pid}/maps").read_text())
                self.client(port)
                second_end.close()
                second.wait(30)
            server_end.close()
            server.wait(30)

    def test_who_does_not_answer_keeps_nobody_from_being_joined(self):
        with self.part():
            with self.holder() as (first, first_end, file, _):
                first.process.send_signal(signal.SIGSTOP)
                server, server_end, port = self.server()
                self.client(port)
                self.assertIsNone(file_of(server))
                first.process.send_signal(signal.SIGCONT)
                self.await_that("a directory", lambda: file_of(server) == file)
                self.client(port)
                first_end.close()
                first.wait(30)
            server_end.close()
            server.wait(30)

    def test_an_older_one_takes_the_place_of_the_first(self):
        # No new node comes that could take over.
        with self.part():
            with self.holder() as (first, first_end, file, port):
                second, second_end = self.idle(port)
                self.await_that("the same directory", lambda: file_of(second) == file)
                first.kill()
                first_end.close()
                self.assertFalse(is_handed_out())
                self.await_that("somebody who hands it out", is_handed_out)
                third, third_end = self.idle(port)
                self.await_that("it", lambda: file_of(third) == file)
                for program, end in ((second, second_end), (third, third_end)):
                    end.close()
                    program.wait(30)

    def test_others_give_it_to_whom_its_holder_does_not_answer(self):
        with self.part():
            with self.holder() as (first, first_end, file, other):
                second, second_end = self.idle(other)
                self.await_that("the same directory", lambda: file_of(second) == file)
                first.process.send_signal(signal.SIGSTOP)
                server, server_end, port = self.server()
                self.client(port)
                self.await_that("it at the server", lambda: file_of(server) == file)
                first.process.send_signal(signal.SIGCONT)
                for program, end in ((first, first_end), (second, second_end)):
                    end.close()
                    program.wait(30)
            server_end.close()
            server.wait(30)

    @unittest.skipUnless(IS_ROOT, "NOT TESTED: being another user needs root")
    def test_another_user_that_has_its_names(self):
        for count in (1, 4):
            with self.part(names=count):
                squatter = self.start("squatter", [sys.executable, "-c", SQUAT, protocol_version(), os.getuid(),
                                                   NOBODY, count])
                squatter.wait_output("^has them$")
                server, server_end, port = self.server()
                self.client(port)
                self.assertEqual(file_of(server) is None, count == 4)
                server_end.close()
                server.wait(30)
                squatter.kill()


if __name__ == "__main__":
    sidestep_harness.main()
