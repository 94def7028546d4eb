#!/usr/bin/env python3
"""Processes in different network namespaces are joined through a folder that all of them see."""

import itertools
import os
import sys
import unittest

import sidestep_harness
from network_hosts import Host, HostsTestCase
from sidestep_harness import build_dir, java

NO_PATH = "no datagram comes from the other end's network namespace"
NOT_ASKED = "not asked for by the other end"
NOT_HELD = "no node on the peer's host holds the other end"
# In separate pid and user namespaces as well, like containers.
APART = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
# A root file system of its own, made of the folders that programs need, with the shared folder at another
# path.
ROOT = """
set -e
root=$1 folder=$2; shift 2
mount -t tmpfs none "$root"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"
    mount --rbind "$1" "$root$1"
    shift
done
shift
mkdir -p "$root/run/sidestep" "$root/proc"
mount --bind "$folder" "$root/run/sidestep"
mount -t proc proc "$root/proc"
exec chroot "$root" "$@"
"""
SERVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", listener.getsockname()[1], flush=True)
stream = listener.accept()[0]
while data := stream.recv(100):
    stream.sendall(sys.argv[3].encode() + data)
"""
# Runs until it is joined, or until the given number of seconds has passed.
CLIENT = """
import ctypes, socket, sys, time
host, port, mark, seconds, quiet = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode(), *map(float, sys.argv[4:6])
source = sys.argv[6:]
stream = socket.create_connection((host, port), source_address=(source[0], int(source[1])) if source else None)
time.sleep(quiet)
carriers = getattr(ctypes.CDLL(None), "sidestep_carriers", lambda number: 0)
limit = time.monotonic() + seconds
turn = rest = 0
while rest < 300 and time.monotonic() < limit:
    said = b"%06d" % turn
    stream.sendall(said)
    back = stream.recv(6 + len(mark), socket.MSG_WAITALL)
    assert back == mark + said, back
    turn += 1
    rest = rest + 1 if carriers(stream.fileno()) == 3 else 0
    time.sleep(0 if rest else 0.005)
print("joined" if rest else "apart", flush=True)
"""


@unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: network namespaces need root")
class Containers(HostsTestCase):
    environment = {}

    def setUp(self):
        super().setUp()
        self.folder = self.directory / "run"
        self.folder.mkdir()

    def start_in(self, host, name, command, folder, apart=False, under=True):
        return self.start(name, host.command(*(APART if apart else []), *command), under,
                          env={"SIDESTEP_DIRECTORY": str(folder or self.folder)})

    def start_in_root(self, host, name, command):
        root = self.directory / f"root-{name}"
        root.mkdir()
        # The folder of the test is visible too, because the process writes its log and its statistics there.
        seen = [path for path in ("/usr", "/bin", "/lib", "/lib64", "/etc", "/dev", sys.base_prefix, build_dir(),
                                  self.directory) if os.path.exists(path)]
        return self.start(name, host.command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--",
                                             "sh", "-c", ROOT, "sh", root, self.folder, *seen, "--", *command),
                          True, env={"SIDESTEP_DIRECTORY": "/run/sidestep"})

    def start_talk(self, here, there, seconds=20, mark="", port=0, source=(), folders=(None, None), apart=False,
                   under=(True, True), quiet=0):
        server = self.start_in(here, "server", [sys.executable, "-c", SERVER, here.ipv4, port, mark or "-"],
                               folders[0], apart, under[0])
        port = int(server.wait_output(r"^listening (\d+)$").group(1))
        client = self.start_in(there, "client", [sys.executable, "-c", CLIENT, here.ipv4, port, mark or "-", seconds,
                                                 quiet, *source], folders[1], apart, under[1])
        return server, client

    def finish(self, *programs):
        for program in reversed(programs):
            program.wait(60)

    def assert_joined(self, *programs):
        for program in programs:
            (stats,) = program.all_stats().values()
            self.assertEqual(stats["streams.engine"], 1, stats)
            self.assertGreater(stats["bytes.rx.engine"], 0)

    def test_two_network_namespaces(self):
        for apart in (False, True):
            with self.hosts(apart=apart) as (here, there):
                programs = self.start_talk(here, there, apart=apart)
                self.finish(*programs)
                self.assertIn("joined", programs[1].stdout)
                self.assert_joined(*programs)

    def test_java_programs(self):
        for kind, apart in itertools.product(("blocking", "selector"), (False, True)):
            with self.hosts(kind=kind, apart=apart) as (here, there):
                server = self.start_in(here, "server", java("PingPong", "server", kind, 0), None, apart)
                port = int(server.wait_output(r"^listening (\d+)$").group(1))
                client = self.start_in(there, "client", java("PingPong", "client", kind, here.ipv4, port, 3, 64), None,
                                       apart)
                self.finish(server, client)
                self.assert_joined(server, client)
                for program in (server, client):
                    self.assertGreater(program.engine_share(), 0.5, program.name)

    def test_roots_of_their_own(self):
        with self.hosts() as (here, there):
            server = self.start_in_root(here, "server", java("PingPong", "server", "blocking", 0))
            port = int(server.wait_output(r"^listening (\d+)$").group(1))
            client = self.start_in_root(there, "client", java("PingPong", "client", "blocking", here.ipv4, port, 3, 64))
            self.finish(server, client)
            for program in (server, client):
                documents = [one for one in program.all_stats().values() if one["streams.total"]]
                self.assertEqual([one["streams.engine"] for one in documents], [1], documents)

    def test_inside_one_namespace_as_ever(self):
        with self.hosts() as (here, _):
            programs = self.start_talk(here, here)
            self.finish(*programs)
            self.assert_joined(*programs)

    def test_two_folders_are_two_hosts(self):
        other = self.directory / "other"
        other.mkdir()
        with self.hosts() as (here, there):
            server, client = self.start_talk(here, there, 10, folders=(self.folder, other))
            self.finish(server, client)
            self.assertIn("apart", client.stdout)
            (stats,) = server.all_stats().values()
            self.assertEqual(stats["kernel_reasons"], {NOT_HELD: 1})

    def start_twins(self, seconds, under, quiet=0):
        """Starts two pairs with the same addresses and ports; only the words that they exchange differ."""
        talks = []
        for mark, ends in zip("ab", under, strict=True):
            here, there = Host(1), Host(2)
            self.addCleanup(here.close)
            self.addCleanup(there.close)
            here.connect(there)
            talks.append(self.start_talk(here, there, seconds, mark, 7000, (there.ipv4, 7001), under=ends,
                                         quiet=quiet))
        return talks

    def test_networks_of_the_same_addresses_are_not_mixed_up(self):
        with self.part():
            for talk in self.start_twins(20, [(True, True)] * 2):
                self.finish(*talk)
                self.assert_joined(*talk)

    def test_an_end_of_another_network_of_the_same_addresses_is_not_taken(self):
        with self.part():
            (server, plain_client), (plain_server, client) = self.start_twins(3, [(True, False), (False, True)], 10)
            self.finish(server, plain_client)
            self.finish(plain_server, client)
            (stats,) = server.all_stats().values()
            self.assertEqual(stats["kernel_reasons"], {NO_PATH: 1})
            (stats,) = client.all_stats().values()
            self.assertEqual(stats["kernel_reasons"], {NOT_ASKED: 1})

    def test_a_folder_that_is_not_there(self):
        with self.hosts() as (here, there):
            server, client = self.start_talk(here, there, 1, folders=("/nowhere", self.folder))
            self.finish(server, client)
            log = (server.directory / "sidestep.log").read_text()
            self.assertIn("SIDESTEP_DIRECTORY: '/nowhere' can't be used: No such file or directory", log)

    def test_names_of_the_killed_are_taken_away(self):
        with self.hosts() as (here, there):
            server, client = self.start_talk(here, there, 30)
            client.wait_output("^joined")
            for program in (server, client):
                program.kill()
            left = {name for name in os.listdir(self.folder) if name.startswith("sidestep.")}
            self.assertTrue(left)
            programs = self.start_talk(here, there)
            self.finish(*programs)
            self.assert_joined(*programs)


if __name__ == "__main__":
    sidestep_harness.main()
