#!/usr/bin/env python3
"""`sidestep check`: what it finds on a machine that lacks something, and what it reports about hosts."""

import contextlib
import json
import os
import pathlib
import sys
import unittest

import sidestep_harness
from network_hosts import HostsTestCase
from sidestep_harness import OWN_ADDRESSES, SidestepTestCase, pair, tool

PORT = 4798  # SIDESTEP_DISCOVERY_PORT, unless somebody sets it
NOBODY = 65534
PYTHON = sys.executable
IS_ROOT = os.geteuid() == 0
HAS_RDMA = any(pathlib.Path("/sys/class/infiniband").glob("*"))

# Holds the discovery port without sharing it, as the user with the given uid, and never answers.
HOLD = f"""
import os, socket, sys
os.setuid(int(sys.argv[1]))
holder = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
holder.bind(("::", {PORT}))
print("holds", flush=True)
while True:
    holder.recv(1000)
"""


class Check(SidestepTestCase):
    def check(self, *arguments, code=0, env=None, before=()):
        """Returns the findings of `sidestep check --json`. `before` goes in front of the command line."""
        program = self.start("check", [*before, tool(), "check", "--json", *arguments], env=env)
        program.wait(60, code)
        document = json.loads(program.stdout)
        self.assertEqual(document["ok"], code == 0)
        for found in document["checks"]:
            self.assertEqual("advice" in found, found["verdict"] != "ok", found)
        return document["checks"]

    def one(self, checks, name, subject=""):
        """Returns the only finding of this check whose subject contains `subject`."""
        found = [c for c in checks if c["check"] == name and subject in c.get("subject", "")]
        self.assertEqual(len(found), 1, f"{name} {subject}: {json.dumps(checks, indent=1)}")
        return found[0]

    def verdict(self, *where):
        return self.one(*where)["verdict"]

    def hold_port(self, user=os.geteuid(), before=()):
        holder = self.start("holder", [*before, PYTHON, "-c", HOLD, user])
        holder.wait_output("^holds$")
        return holder

    @contextlib.contextmanager
    def live_pair(self, env=None, host="127.0.0.1"):
        """Runs two processes on this host with a stream between them; yields its port."""
        server = self.start("server", [pair(), "server", "--host", host], under=True, env=env)
        port = server.wait_listening()
        client = self.start("client", [pair(), "client", "--host", host, "--bytes", 1 << 44,
                                       "--port", port], under=True, env=env)
        for program in (server, client):
            program.wait_output("^streaming$")
        yield port
        for program in (server, client):
            program.kill()


class Machine(Check):
    def test_what_always_works(self):
        with self.part():
            checks = self.check()
            for name in ("configuration", "shared memory", "unix sockets", "connections"):
                self.assertEqual(self.verdict(checks, name), "ok")
            self.assertEqual(self.verdict(checks, "discovery", "IPv6"), "ok")
            self.assertIn("free", self.one(checks, "discovery", f"UDP port {PORT}")["found"])

    def test_text_and_json_say_the_same(self):
        with self.part():
            env = {"SIDESTEP_SPIN_US": "never"}
            checks = self.check("127.0.0.1:80", code=1, env=env)
            program = self.start("text", [tool(), "check", "127.0.0.1:80"], env=env)
            program.wait(30, code=1)
            for c in checks:
                verdict = c["verdict"].replace("fail", "FAIL")
                subject = c["subject"] + ": " if "subject" in c else ""
                line = f"{verdict:<5} {c['check']:<14} {subject}{c['found']}\n"
                if "advice" in c:
                    line += f"{'':21}-> {c['advice']}\n"
                self.assertIn(line, program.stdout)
            lines = [line for line in program.stdout.splitlines() if not line.startswith(" ")]
            self.assertEqual(len(lines), len(checks))

    @unittest.skipIf(HAS_RDMA, "NOT TESTED: this machine has an RDMA device")
    def test_without_a_device_only_who_asks_for_verbs_fails(self):
        for device, code, verdict in (("auto", 0, "warn"), ("verbs", 1, "fail"),
                                      ("verbs:none0", 1, "fail")):
            with self.part(device=device):
                checks = self.check(code=code, env={"SIDESTEP_DEVICE": device})
                # On a machine without rdma-core, it is the library that is missing.
                missing = [c["verdict"] for c in checks if c["check"] in ("libibverbs", "RDMA device")]
                self.assertIn(verdict, missing)
        with self.part(device="shm"):
            checks = self.check(env={"SIDESTEP_DEVICE": "shm"})
            self.assertEqual({c["verdict"] for c in checks}, {"ok"})

    @unittest.skipUnless(IS_ROOT, "NOT TESTED: giving up CAP_IPC_LOCK needs root")
    def test_little_locked_memory(self):
        unlocked = ["setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock", "--"]
        for limit, device, verdict in ((65536, "auto", "warn"), (65536, "verbs", "fail"),
                                       (8 << 20, "auto", "warn")):
            with self.part(limit=limit, device=device):
                before = ["prlimit", f"--memlock={limit}:", *unlocked]
                program = self.start("check", [*before, tool(), "check", "--json"],
                                     env={"SIDESTEP_DEVICE": device})
                program.wait(30, code=None)
                checks = json.loads(program.stdout)["checks"]
                self.assertEqual(self.verdict(checks, "locked memory"), verdict)
        with self.part(limit=65536, capable=True):
            checks = self.check(before=["prlimit", "--memlock=65536:"])
            self.assertEqual(self.verdict(checks, "locked memory"), "ok")


class Configuration(Check):
    def test_a_bad_variable_is_shown(self):
        for name, value in (("SIDESTEP_SPIN_US", "never"), ("SIDESTEP_SPINUS", "1"),
                            ("SIDESTEP_CONFIG", "/nonexistent/file")):
            with self.part(name=name):
                found = self.one(self.check(code=1, env={name: value}), "configuration")
                self.assertEqual(found["verdict"], "fail")
                self.assertIn(name, found["found"])

    def test_a_bad_line_of_the_file_is_shown(self):
        file = self.directory / "conf"
        file.write_text("SPIN_US=17\nORB_SIZE=5\n")
        with self.part():
            env = {"SIDESTEP_CONFIG": str(file)}
            found = self.one(self.check(code=1, env=env), "configuration")
            self.assertIn("SIDESTEP_ORB_SIZE", found["found"])

    def test_switched_off_is_a_warning(self):
        for name, value in (("SIDESTEP_ENABLE", "no"), ("SIDESTEP_DEVICE", "none")):
            with self.part(name=name):
                found = self.one(self.check(env={name: value}), "configuration")
                self.assertEqual(found["verdict"], "warn")

    def test_a_key_that_others_can_read_is_refused(self):
        file = self.directory / "key"
        file.write_bytes(os.urandom(32))
        env = {"SIDESTEP_KEY_FILE": str(file)}
        for mode, code, verdict in ((0o600, 0, "ok"), (0o644, 1, "fail")):
            with self.part(mode=oct(mode)):
                file.chmod(mode)
                self.assertEqual(self.verdict(self.check(code=code, env=env), "key"), verdict)


class DiscoveryPort(Check):
    environment = {"SIDESTEP_ALLOW_NO_KEY": "yes"}

    @unittest.skipUnless(IS_ROOT, "NOT TESTED: being another user needs root")
    def test_held_by_another_user(self):
        with self.part():
            holder = self.hold_port(NOBODY)
            found = self.one(self.check(), "discovery", "UDP port")
            self.assertEqual(found["verdict"], "warn")
            self.assertRegex(found["found"], rf"user nobody, PID {holder.pid} \(")
            holder.kill()

    def test_held_by_a_program_of_this_user_that_is_no_node(self):
        with self.part():
            holder = self.hold_port()
            found = self.one(self.check(), "discovery", "UDP port")
            self.assertEqual(found["verdict"], "warn")
            self.assertIn(f"PID {holder.pid} (", found["found"])
            holder.kill()

    def test_shared_by_nodes_of_this_user(self):
        with self.part(), self.live_pair():
            found = self.one(self.check(), "discovery", "UDP port")
            self.assertEqual(found["verdict"], "ok")
            self.assertIn("answered", found["found"])


class ThisHost(Check):
    def test_nobody_is_there(self):
        nobody = "no process of this user is under Sidestep here"
        for address, allow, words in (("127.0.0.1", "yes", f"{nobody}; nothing listens on UDP port {PORT}"),
                                      (OWN_ADDRESSES[0], "yes", f"{nobody}; nothing listens on UDP port {PORT}"),
                                      (OWN_ADDRESSES[0], "no", nobody)):
            with self.part(address=address, allow=allow):
                checks = self.check(f"{address}:80", code=1, env={"SIDESTEP_ALLOW_NO_KEY": allow})
                found = self.one(checks, "host", address)
                self.assertEqual(found["verdict"], "fail")
                self.assertRegex(found["found"], f"{words}$")
                self.assertEqual(self.verdict(checks, "stream", f"{address}:80"), "fail")

    def test_a_stream_would_use_shared_memory(self):
        with self.part(), self.live_pair() as port:
            checks = self.check(f"127.0.0.1:{port}")
            self.assertEqual(self.verdict(checks, "host", "127.0.0.1"), "ok")
            found = self.one(checks, "stream", f"127.0.0.1:{port}")
            self.assertEqual(found["verdict"], "ok")
            self.assertIn("shared memory", found["found"])

    def test_what_keeps_a_stream_on_the_kernel_by_intent(self):
        with self.part(), self.live_pair() as port:
            for env in ({"SIDESTEP_RULES": f"deny port={port}"}, {"SIDESTEP_ENABLE": "no"},
                        {"SIDESTEP_DEVICE": "none"}):
                found = self.one(self.check(f"127.0.0.1:{port}", env=env), "stream")
                self.assertEqual(found["verdict"], "warn")
                self.assertIn(next(iter(env)), found["found"])
            env = {"SIDESTEP_RULES": f"deny port={port + 1}"}
            self.assertEqual(self.verdict(self.check(f"127.0.0.1:{port}", env=env), "stream"), "ok")

    def test_what_is_no_host(self):
        for word in ("host:", "host:port", "127.0.0.1:0", "127.0.0.1:65536", "[::1", "[::1]x", ":1",
                     "name.invalid"):
            with self.part(word=word):
                found = self.one(self.check(word, code=1), "host")
                self.assertEqual(found["verdict"], "fail")


@unittest.skipUnless(IS_ROOT, "NOT TESTED: hosts need root, to make network namespaces")
class OtherHosts(Check, HostsTestCase):
    @contextlib.contextmanager
    def node_on(self, host, env=None):
        """Runs a process under Sidestep on this host that is connected to itself."""
        program = self.start("node", host.command(PYTHON, "-c", """
import socket
listener = socket.create_server(("127.0.0.1", 0))
stream = socket.create_connection(listener.getsockname())
print("ready", flush=True)
listener.accept()[0].recv(1)
"""), under=True, env=env)
        program.wait_output("^ready$")
        yield program
        program.kill()

    def look(self, here, *arguments, **options):
        return self.check(*arguments, before=here.command(), **options)

    def test_nothing_listens_there(self):
        with self.hosts() as (here, there):
            for address in (there.ipv4, there.ipv6):
                found = self.one(self.look(here, address, code=1), "host")
                self.assertEqual(found["verdict"], "fail")
                self.assertIn("nothing listens", found["found"])

    def test_nobody_answers_there(self):
        with self.hosts() as (here, there):
            holder = self.hold_port(before=there.command())
            found = self.one(self.look(here, there.ipv4, code=1), "host")
            self.assertIn("no answer", found["found"])
            self.assertIn("firewall", found["advice"])
            holder.kill()

    def test_no_such_host(self):
        with self.hosts() as (here, _):
            found = self.one(self.look(here, "10.77.0.9", code=1), "host")
            self.assertIn("can't be reached", found["found"])

    def test_a_node_answers(self):
        with self.hosts() as (here, there), self.node_on(there):
            for address in (there.ipv4, there.ipv6):
                self.assertEqual(self.verdict(self.look(here, address), "host"), "ok")
            if not HAS_RDMA:
                checks = self.look(here, f"[{there.ipv6}]:80", code=1)
                self.assertEqual(self.verdict(checks, "host"), "ok")
                found = self.one(checks, "stream")
                self.assertEqual(found["verdict"], "fail")
                self.assertRegex(found["found"], "no RDMA device|libibverbs")
            found = self.one(self.look(here, f"{there.ipv4}:80", env={"SIDESTEP_DEVICE": "shm"}),
                             "stream")
            self.assertEqual(found["verdict"], "warn")
            self.assertIn("SIDESTEP_DEVICE=shm", found["found"])

    def test_the_hosts_of_the_nodes_option(self):
        with self.hosts() as (here, there), self.node_on(there):
            nodes = self.directory / "nodes"
            nodes.write_text(f"{there.ipv4}\n# nobody\n{here.ipv4}\n")
            for value in (f"{there.ipv4},{here.ipv4}", f"@{nodes}"):
                checks = self.look(here, env={"SIDESTEP_NODES": value})
                self.assertEqual(self.verdict(checks, "nodes", there.ipv4), "ok")
                self.assertEqual(self.verdict(checks, "nodes", here.ipv4), "warn")

    def test_without_a_key_no_host_is_asked(self):
        none = {"SIDESTEP_ALLOW_NO_KEY": "no"}
        with self.hosts() as (here, there), self.node_on(there):
            checks = self.look(here, there.ipv4, f"{there.ipv4}:80", env=none, code=1)
            self.assertEqual(self.verdict(checks, "key"), "warn")
            self.assertIn("stays closed", self.one(checks, "discovery", "UDP port")["found"])
            for found in (found for found in checks if found["check"] == "host"):
                self.assertEqual(found["verdict"], "fail")
                self.assertIn("without the key", found["found"])
            self.assertIn("not joined without a key", self.one(checks, "stream")["found"])
            # Within one host nothing is missing.
            with self.node_on(here, none):
                self.assertEqual(self.verdict(self.look(here, f"{here.ipv4}:80", env=none), "stream"), "ok")

    def test_a_node_with_another_key_does_not_answer(self):
        key = self.directory / "key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        keyed = {"SIDESTEP_KEY_FILE": str(key)}
        with self.hosts() as (here, there), self.node_on(there, keyed):
            self.assertEqual(self.verdict(self.look(here, there.ipv4, env=keyed), "host"), "ok")
            found = self.one(self.look(here, there.ipv4, code=1), "host")
            self.assertIn("SIDESTEP_KEY_FILE", found["advice"])


if __name__ == "__main__":
    sidestep_harness.main()
