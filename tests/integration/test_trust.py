#!/usr/bin/env python3
"""Processes of different users are joined if both trust each other, and only then."""

import grp
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
import unittest

import sidestep_harness
from sidestep_harness import SidestepTestCase, build_dir, java, preload_library, tool

OTHER_USER = "the other end belongs to another user (SIDESTEP_TRUST)"
ASKING = "asking for the other end"
NOT_ASKED = "not asked for by the other end"
# Users that exist on every Debian system.
FIRST, SECOND = "daemon", "games"
SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print("listening", listener.getsockname()[1], flush=True)
stream = listener.accept()[0]
while data := stream.recv(100):
    stream.sendall(data)
"""
CLIENT = """
import ctypes, select, socket, sys, time
stream = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
carriers = ctypes.CDLL(None).sidestep_carriers
joined = sys.argv[2] == "joined"
limit = time.monotonic() + 20
turn = 0
while not (time.monotonic() > limit or carriers(stream.fileno()) == 3 if joined else select.select([0], [], [], 0)[0]):
    stream.sendall(b"%06d" % turn)
    assert stream.recv(6, socket.MSG_WAITALL) == b"%06d" % turn
    turn += 1
    time.sleep(0.005)
for turn in range(300 if joined else 0):
    stream.sendall(b"%06d" % turn)
    assert stream.recv(6, socket.MSG_WAITALL) == b"%06d" % turn
"""


def of_user(name, *command):
    user = pwd.getpwnam(name)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *command]


@unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: being another user needs root")
class Trust(SidestepTestCase):
    def setUp(self):
        super().setUp()
        # The build may be in a folder that other users cannot enter.
        self.directory.chmod(0o755)
        self.preloaded = shutil.copy(preload_library(), self.directory)
        self.tool = shutil.copy(tool(), self.directory)
        self.classes = shutil.copytree(build_dir() / "java", self.directory / "java")
        for program in ([sys.executable, "-c", ""], ["java", "-version"], ["test", "-r", self.preloaded]):
            tried = subprocess.run(of_user(FIRST, *program), check=False, capture_output=True)
            if tried.returncode != 0:
                self.skipTest(f"NOT TESTED: the user {FIRST} cannot run {program[0]}: {tried.stderr}")

    def python(self, program, *arguments):
        return [sys.executable, "-c", program, *map(str, arguments)]

    def java(self, program, *arguments):
        return [str(self.classes) if word == str(build_dir() / "java") else word
                for word in java(program, *arguments)]

    def wait_until_decided(self, user, server):
        """Waits until the node of the server no longer asks for the other end of its only stream."""
        deadline = time.monotonic() + 40
        reasons = {}
        while not reasons or reasons.keys() & {ASKING, NOT_ASKED}:
            self.assertLess(time.monotonic(), deadline, reasons)
            time.sleep(0.1)
            status = subprocess.run(of_user(user, self.tool, "stat", "--json"), check=True, capture_output=True)
            for document in json.loads(status.stdout):
                if document["pid"] == server.pid:
                    reasons = document["kernel_reasons"]

    def run_pair(self, users, trust, server, client, decided=False):
        """Runs both programs to their end. `client`: makes its command line from the server's port.

        With `decided`, the client gets the end of its standard input when the server's node has decided what
        becomes of the stream.
        """
        started = []
        for name, command in (("server", lambda: server), ("client", lambda: client(started[0].wait_listening()))):
            own = len(started)
            before = os.umask(0)  # the user writes its log and statistics into the folder
            started.append(self.start(name, of_user(users[own], *command()), True,
                                      env={"SIDESTEP_TRUST": trust[own], "LD_PRELOAD": self.preloaded},
                                      stdin=subprocess.PIPE))
            os.umask(before)
        if decided:
            self.wait_until_decided(users[0], started[0])
        started[1].process.stdin.close()
        for program in reversed(started):
            program.wait(60)
        started[0].process.stdin.close()
        return started

    def run_round_trips(self, users, trust, joined):
        return self.run_pair(users, trust, self.python(SERVER),
                             lambda port: self.python(CLIENT, port, "joined" if joined else "apart"),
                             decided=not joined)

    def test_users_that_trust_each_other_are_joined(self):
        number = str(pwd.getpwnam(SECOND).pw_uid)
        group = "@" + grp.getgrgid(pwd.getpwnam(FIRST).pw_gid).gr_name
        for trust in ((SECOND, FIRST), (number, group), (f"root, {SECOND}", f"{FIRST},@tty")):
            with self.part(trust=trust):
                server, client = self.run_round_trips((FIRST, SECOND), trust, True)
                self.assert_all_over_engine(server, client, streams=1)

    def run_java(self, kind, trust, seconds=2):
        return self.run_pair((FIRST, SECOND), trust, self.java("PingPong", "server", kind, 0),
                             lambda port: self.java("PingPong", "client", kind, "127.0.0.1", port, seconds, 64))

    def test_java_programs_of_users_that_trust_each_other(self):
        for kind in ("blocking", "selector"):
            with self.part(kind=kind):
                programs = self.run_java(kind, (SECOND, FIRST))
                self.assert_all_over_engine(*programs, streams=1)
                for program in programs:
                    self.assertGreater(program.engine_share(), 0.5, program.name)

    def test_java_programs_of_users_that_do_not_trust_each_other(self):
        with self.part():
            # Runs for as long as a node asks for the other end.
            self.assert_apart(*self.run_java("selector", ("", ""), 10))

    def assert_apart(self, server, client):
        self.assertEqual(server.stats()["kernel_reasons"], {OTHER_USER: 1})
        self.assertEqual(client.stats()["kernel_reasons"], {NOT_ASKED: 1})
        for program in (server, client):
            self.assertEqual(program.stats()["streams.engine"], 0)

    def test_one_side_that_does_not_trust_is_enough(self):
        for trust in (("", ""), (SECOND, ""), ("", FIRST), ("root,@root", "root")):
            with self.part(trust=trust):
                self.assert_apart(*self.run_round_trips((FIRST, SECOND), trust, False))

    def test_root_is_another_user(self):
        for users, trust in ((("root", FIRST), (FIRST, "0")), ((FIRST, "root"), ("0", FIRST))):
            with self.part(users=users):
                server, client = self.run_round_trips(users, trust, True)
                self.assert_all_over_engine(server, client, streams=1)

    def test_a_name_that_is_not_there_is_told_of(self):
        with self.part():
            server, client = self.run_round_trips((FIRST, FIRST), ("nobody-of-that-name", ""), True)
            self.assert_all_over_engine(server, client, streams=1)
            log = (server.directory / "sidestep.log").read_text()
            self.assertIn("SIDESTEP_TRUST: 'nobody-of-that-name'", log)


if __name__ == "__main__":
    sidestep_harness.main()
