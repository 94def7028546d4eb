#!/usr/bin/env python3
"""The command `sidestep`: it runs programs under the library, shows them, and lists the options."""

import json
import os
import re
import subprocess
import sys
import time

import sidestep_harness
from sidestep_harness import ROOT, SidestepTestCase, pair, preload_library, tool

OPTIONS = ("ENABLE LOG_LEVEL LOG_FILE NID NODES DISCOVERY_PORT DEVICE SPIN_US RULES "
           "STATS_FILE").split()
NO_COMMAND, CANNOT_EXECUTE, NOT_FOUND = 125, 126, 127


class Library(SidestepTestCase):
    def test_no_thread_needs_memory_of_mallocs_for_its_end(self):
        """A handler may be the first in its thread to use a stream (engine/base/thread_end.hpp)."""
        symbols = subprocess.run(["nm", "-D", "--undefined-only", preload_library()], check=True,
                                 capture_output=True, text=True).stdout
        self.assertIn("pthread_setspecific", symbols)
        self.assertNotIn("__cxa_thread_atexit_impl", symbols)


class Tool(SidestepTestCase):
    def sidestep(self, *arguments, code=0, env=None):
        """Runs the tool to its end and returns the process."""
        program = self.start("sidestep", [tool(), *arguments], env=env)
        program.wait(30, code)
        return program

    def environment_under(self, *arguments, env=None):
        output = self.sidestep("run", *arguments, "--", "/usr/bin/env", "-0", env=env).stdout
        return dict(entry.split("=", 1) for entry in output.split("\0") if entry)


class Run(Tool):
    def test_the_command_gets_the_library(self):
        with self.part():
            self.assertEqual(self.environment_under()["LD_PRELOAD"], str(preload_library()))

    def test_other_preloaded_libraries_stay(self):
        with self.part():
            other = "libm.so.6"
            preload = self.environment_under(env={"LD_PRELOAD": other})["LD_PRELOAD"]
            self.assertEqual(set(preload.replace(":", " ").split()),
                             {str(preload_library()), other})

    def test_options_become_variables(self):
        with self.part():
            environment = self.environment_under("--spin-us=17", "--log-level=error")
            self.assertEqual(environment["SIDESTEP_SPIN_US"], "17")
            self.assertEqual(environment["SIDESTEP_LOG_LEVEL"], "error")

    def test_the_exit_code_is_that_of_the_command(self):
        for wanted in (0, 7):
            with self.part(code=wanted):
                self.sidestep("run", "--", "/bin/sh", "-c", f"exit {wanted}", code=wanted)

    def test_words_of_the_command_are_not_taken_for_options(self):
        with self.part():
            program = self.sidestep("run", "--", "/bin/echo", "--spin-us=1", "--help", "--")
            self.assertEqual(program.stdout, "--spin-us=1 --help --\n")

    def test_the_process_becomes_the_command(self):
        with self.part():
            program = self.sidestep("run", "--", "/bin/sh", "-c", "echo $$")
            self.assertEqual(program.stdout.strip(), str(program.pid))

    def test_what_cannot_be_run_is_said(self):
        missing = str(self.directory / "missing")
        plain = self.directory / "plain"
        plain.write_text("no program")
        plain.chmod(0o644)
        for arguments, code in ((["--", missing], NOT_FOUND),
                                (["--", str(plain)], CANNOT_EXECUTE),
                                (["--spin-us=never", "--", "/bin/true"], NO_COMMAND),
                                (["--no-such-option=1", "--", "/bin/true"], NO_COMMAND),
                                ([], NO_COMMAND)):
            with self.part(arguments=arguments):
                program = self.sidestep("run", *arguments, code=code)
                self.assertTrue(program.stderr.startswith("sidestep:"), program.stderr)
                self.assertEqual(program.stdout, "")

    def test_a_program_without_streams_is_left_alone(self):
        with self.part():
            program = self.sidestep("run", "--", sys.executable, "-c", "print('hello')")
            self.assertEqual((program.stdout, program.stderr), ("hello\n", ""))

    def test_enable_no_leaves_a_pair_on_the_kernel(self):
        with self.part():
            off = {"SIDESTEP_ENABLE": "no"}
            server = self.start("server", [pair(), "server"], under=True, env=off)
            client = self.start("client", [pair(), "client", "--port", server.wait_listening(),
                                           "--bytes", 1 << 20], under=True)
            client.wait(60)
            server.wait(60)
            self.assert_on_kernel(client)
            self.assertEqual(server.engine_bytes("tx") + server.engine_bytes("rx"), 0)


    def test_a_rule_denies_a_program_by_its_path(self):
        for glob, engine in (("*/programs/pair", False), ("/usr/bin/*", True)):
            with self.part(glob=glob):
                rules = {"SIDESTEP_RULES": f"deny program={glob}"}
                server = self.start("server", [pair(), "server"], under=True, env=rules)
                client = self.start("client", [pair(), "client", "--port", server.wait_listening(),
                                               "--bytes", 1 << 24], under=True)
                client.wait(60)
                server.wait(60)
                self.assertEqual(server.engine_bytes("tx") + server.engine_bytes("rx") != 0, engine)


class Options(Tool):
    def test_every_option_is_listed(self):
        with self.part():
            text = self.sidestep("options").stdout
            for name in OPTIONS:
                self.assertRegex(text, rf"(?m)^SIDESTEP_{name}=")

    def test_each_form_has_the_same_options(self):
        with self.part():
            for form in ("--markdown", "--man"):
                text = self.sidestep("options", form).stdout
                for name in OPTIONS:
                    self.assertIn(f"SIDESTEP_{name}", text)


class Reasons(Tool):
    def test_each_form_has_the_same_reasons(self):
        table = (ROOT / "engine" / "base" / "reasons.def").read_text()
        known = re.findall(r'^SIDESTEP_REASON\((\w+),\s*"([^"]+)"', table, re.MULTILINE)
        self.assertGreater(len(known), 50)
        with self.part():
            for form in ((), ("--markdown",), ("--man",)):
                text = self.sidestep("reasons", *form).stdout.replace("\\-", "-")
                for code, name in known:
                    self.assertIn(name, text)
                    self.assertIn(code, text)


class Stat(Tool):
    def documents(self, *pids):
        found = json.loads(self.sidestep("stat", "--json").stdout)
        for document in found:
            self.assertEqual([*document["kernel_reasons"].values()],
                             [*document["kernel_reason_codes"].values()])
            for stream in document["open_streams"]:
                self.assertEqual(bool(stream["reason"]), bool(stream["reason_code"]))
        return {d["pid"]: d for d in found if d["pid"] in pids}

    def wait_until_moved(self, *pids):
        """Waits until the engine carries all streams of the processes; returns their documents."""
        deadline = time.monotonic() + 15
        while True:
            found = self.documents(*pids)
            if len(found) == len(pids) and all(
                    s["tx"]["carrier"] == s["rx"]["carrier"] == "engine"
                    for d in found.values() for s in d["open_streams"]):
                return found
            if time.monotonic() > deadline:
                self.fail(f"not on the engine after 15 s: {json.dumps(found, indent=1)}")
            time.sleep(0.1)

    def start_live_pair(self):
        server = self.start("server", [pair(), "server", "--connections", 2], under=True)
        client = self.start("client", [pair(), "client", "--connections", 2, "--bytes", 1 << 44,
                                       "--port", server.wait_listening()], under=True)
        for program in (server, client):
            program.wait_output("^streaming$")
        return server, client

    def test_a_live_pair_shows_both_ends(self):
        with self.part():
            server, client = self.start_live_pair()
            found = self.wait_until_moved(server.pid, client.pid)
            ends = [{(s["local"], s["remote"]) for s in found[p.pid]["open_streams"]}
                    for p in (server, client)]
            self.assertEqual(len(ends[0]), 2)
            self.assertEqual(ends[0], {(remote, local) for local, remote in ends[1]})
            nids = [found[p.pid]["nid"] for p in (server, client)]
            self.assertNotEqual(*nids)
            self.assertEqual([c["nid"] for c in found[server.pid]["connections"]], [nids[1]])
            self.assertEqual([c["nid"] for c in found[client.pid]["connections"]], [nids[0]])
            # The ports determine the lanes (engine/connection/stream_lane.hpp); the first lane is made before
            # any other.
            ports = [[int(address.rpartition(":")[2]) for address in pair] for pair in ends[0]]
            lanes = {0, *(sum(pair) // 2 % 4 for pair in ports)}
            for program in (server, client):
                self.assertEqual(found[program.pid]["connections"][0]["lanes"], len(lanes))

            text = self.sidestep("stat").stdout
            for program in (server, client):
                self.assertRegex(text, rf"\b{program.pid}\b")

            one = json.loads(self.sidestep("stat", "--json", client.pid).stdout)
            self.assertEqual([d["pid"] for d in one], [client.pid])
            for program in (server, client):
                program.kill()

    def test_bytes_grow_while_the_pair_works(self):
        with self.part():
            server, client = self.start_live_pair()
            before = self.wait_until_moved(server.pid, client.pid)
            time.sleep(0.5)
            after = self.documents(server.pid, client.pid)
            for pid, document in before.items():
                for direction in ("tx", "rx"):
                    self.assertGreater(after[pid]["bytes"][direction]["engine"],
                                       document["bytes"][direction]["engine"])
            for program in (server, client):
                program.kill()

    def test_a_direction_in_the_middle_of_a_move_shows_its_state(self):
        with self.part():
            # The server never sends, so the client's end stays ready to receive.
            server = self.start("server", [sys.executable, "-c", """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print("listening", listener.getsockname()[1], flush=True)
stream = listener.accept()[0]
while stream.recv(100):
    pass
"""], under=True)
            client = self.start("client", [sys.executable, "-c", """
import socket, sys, threading, time
stream = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
threading.Thread(target=stream.recv, args=(1,), daemon=True).start()
while True:
    stream.send(b"word")
    time.sleep(0.01)
""", server.wait_listening()], under=True)
            deadline = time.monotonic() + 15
            expected = {server.pid: ("kernel", "engine"), client.pid: ("engine", "ready")}
            states = None
            while states != expected:
                self.assertLess(time.monotonic(), deadline, states)
                time.sleep(0.05)
                states = {pid: (s["tx"]["state"], s["rx"]["state"])
                          for pid, d in self.documents(*expected).items() for s in d["open_streams"]}
            self.assertRegex(self.sidestep("stat", client.pid).stdout, r"(?m)^ +state: receiving ready$")
            self.assertNotIn("state:", self.sidestep("stat", server.pid).stdout)
            for program in (server, client):
                program.kill()

    def test_a_process_that_is_not_under_sidestep_is_refused(self):
        with self.part():
            program = self.sidestep("stat", os.getpid(), code=1)
            self.assertIn(str(os.getpid()), program.stderr)

    def test_nothing_running_is_an_empty_list(self):
        with self.part():
            self.assertEqual(json.loads(self.sidestep("stat", "--json").stdout), [])


if __name__ == "__main__":
    sidestep_harness.main()
