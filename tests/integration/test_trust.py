#!/usr/bin/env python3
"""Processes of different users are joined where both trust each other, and only there."""

import grp
import os
import pwd
import sys
import unittest

import sidestep_harness
from sidestep_harness import SidestepTestCase

OTHER_USER = "the other end belongs to another user (SIDESTEP_TRUST)"
NOT_ASKED = "not asked for by the other end"
# Users that each Debian has.
FIRST, SECOND = "daemon", "games"
ROUNDS = 300
SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print("listening", listener.getsockname()[1], flush=True)
stream = listener.accept()[0]
while data := stream.recv(100):
    stream.sendall(data)
"""
CLIENT = """
import ctypes, socket, sys, time
stream = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
carriers = ctypes.CDLL(None).sidestep_carriers
joined = sys.argv[2] == "joined"
limit = time.monotonic() + (20 if joined else 9)
turn = 0
while time.monotonic() < limit and not (joined and carriers(stream.fileno()) == 3):
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
    def run_pair(self, users, trust, joined):
        """The two programs, at their end."""
        self.directory.chmod(0o755)
        started = []
        for name, user, whom, program, *arguments in (("server", users[0], trust[0], SERVER),
                                                      ("client", users[1], trust[1], CLIENT)):
            if name == "client":
                arguments = [started[0].wait_listening(), "joined" if joined else "apart"]
            started.append(self.start(name, of_user(user, sys.executable, "-c", program, *map(str, arguments)),
                                      True, env={"SIDESTEP_TRUST": whom}))
            started[-1].directory.chmod(0o777)  # for its statistics
        server, client = started
        client.wait(60)
        server.wait(60)
        return server, client

    def test_users_that_trust_each_other_are_joined(self):
        number = str(pwd.getpwnam(SECOND).pw_uid)
        group = "@" + grp.getgrgid(pwd.getpwnam(FIRST).pw_gid).gr_name
        for trust in ((SECOND, FIRST), (number, group), (f"root, {SECOND}", f"{FIRST},@tty")):
            with self.part(trust=trust):
                server, client = self.run_pair((FIRST, SECOND), trust, True)
                self.assert_all_over_engine(server, client, streams=1)

    def test_one_side_that_does_not_trust_is_enough(self):
        for trust in (("", ""), (SECOND, ""), ("", FIRST), ("root,@root", "root")):
            with self.part(trust=trust):
                server, client = self.run_pair((FIRST, SECOND), trust, False)
                self.assertEqual(server.stats()["kernel_reasons"], {OTHER_USER: 1})
                self.assertEqual(client.stats()["kernel_reasons"], {NOT_ASKED: 1})
                for program in (server, client):
                    self.assertEqual(program.stats()["streams.engine"], 0)

    def test_root_is_another_user(self):
        for users, trust in ((("root", FIRST), (FIRST, "0")), ((FIRST, "root"), ("0", FIRST))):
            with self.part(users=users):
                server, client = self.run_pair(users, trust, True)
                self.assert_all_over_engine(server, client, streams=1)

    def test_a_name_that_is_not_there_is_told_of(self):
        with self.part():
            server, client = self.run_pair((FIRST, FIRST), ("nobody-of-that-name", ""), True)
            self.assert_all_over_engine(server, client, streams=1)
            log = (server.directory / "sidestep.log").read_text()
            self.assertIn("SIDESTEP_TRUST: 'nobody-of-that-name'", log)


if __name__ == "__main__":
    sidestep_harness.main()
