#!/usr/bin/env python3
"""A connection that fails under load, while both processes live on, loses no byte."""

import ctypes
import json
import pathlib
import re
import struct
import time

import sidestep_harness
from sidestep_harness import BOTH, KERNEL, SidestepTestCase

# Bytes per connection and direction; enough for the failure to happen in the middle.
SHAPES = [
    ["--mode", "block", "--connections", "1", "--bytes", str(2 << 30)],
    ["--mode", "epoll-et", "--connections", "4", "--bytes", str(256 << 20)],
    ["--mode", "poll", "--connections", "3", "--bytes", str(256 << 20)],
]
# shm/layout.hpp: the descriptor ring follows a region's first page; `length` is at 8 in each descriptor.
RING_OFFSET = 4096
DESCRIPTOR = struct.Struct("<QII")
IMPOSSIBLE = 0xffffffff


class IoVector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


LIBC = ctypes.CDLL(None, use_errno=True)


def transfer(function, pid, address, buffer):
    """Calls process_vm_readv or process_vm_writev for one piece; returns the number of bytes, or -1."""
    here = IoVector(ctypes.cast(buffer, ctypes.c_void_p), len(buffer))
    there = IoVector(address, len(buffer))
    return getattr(LIBC, function)(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)


def outgoing_regions(pid):
    """Yields the addresses of the regions that the process writes; each begins with its ring."""
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        match = re.match(r"([0-9a-f]+)-\S+ rw-s 00000000 .*/memfd:sidestep \(deleted\)$", line)
        if match:
            yield int(match.group(1), 16)


def write_nonsense(pid):
    """Corrupts the descriptors that the process has written for its peers."""
    for region in outgoing_regions(pid):
        ring = ctypes.create_string_buffer(4096 * DESCRIPTOR.size)
        if transfer("process_vm_readv", pid, region + RING_OFFSET, ring) != len(ring):
            continue
        # Only the lengths: the process itself decides which descriptors are new.
        for index in range(4096):
            word = ctypes.create_string_buffer(struct.pack("<I", IMPOSSIBLE), 4)
            transfer("process_vm_writev", pid,
                     region + RING_OFFSET + index * DESCRIPTOR.size + 8, word)


def ends(program):
    """Returns how each direction of each connection ended, and after how many checked bytes."""
    report = json.loads(program.stdout.splitlines()[-1])
    return sorted((c["number"], way, c[way]["outcome"], c[way]["bytes"])
                  for c in report["connections"] for way in ("tx", "rx"))


class FailedConnection(SidestepTestCase):
    def run_pair(self, mode, shape, victim=None):
        server = self.start("server", [sidestep_harness.pair(), "server", *shape[:4]], mode.server)
        port = server.wait_listening()
        client = self.start("client", [sidestep_harness.pair(), "client", "--port", port, *shape],
                            mode.client)
        server.wait_output("^streaming$")
        client.wait_output("^streaming$")
        programs = {"server": server, "client": client}
        if victim:
            time.sleep(0.05)
            end = time.monotonic() + 20
            while programs[victim].running and time.monotonic() < end:
                if "the connection is closed" in server.stderr + client.stderr:
                    break
                write_nonsense(programs[victim].pid)
        client.wait(120)
        server.wait(120)
        return server, client

    def fail_in_the_middle(self, shape, victim, expected):
        """Runs pairs until a failure comes before the end of both directions; each run must be right."""
        for _ in range(10):
            programs = self.run_pair(BOTH, shape, victim)
            self.assertEqual([ends(program) for program in programs], expected)
            # One direction, or all of them, may have been complete when the connection failed.
            if all(p.stats()["bytes"][way]["kernel"] and p.stats()["engine"]["connections_lost"]
                   for p in programs for way in ("tx", "rx")):
                break
        return programs

    def test_both_ends_go_on_over_the_kernel(self):
        replayed = 0
        for victim in ("server", "client"):
            for shape in SHAPES:
                with self.part(victim=victim, shape=" ".join(shape)):
                    expected = [ends(program) for program in self.run_pair(KERNEL, shape)]
                    programs = self.fail_in_the_middle(shape, victim, expected)
                    for program in programs:
                        stats = program.stats()
                        # One for each lane that had something to read.
                        self.assertIn(stats["engine"]["connections_lost"],
                                      range(1, stats["engine"]["connections_opened"] + 1))
                        replayed += stats["engine"]["replayed_bytes"]
                        self.assertEqual(list(stats["kernel_reasons"]), ["the connection failed"])
                        for way in ("tx", "rx"):
                            self.assertGreater(stats["bytes"][way]["engine"], 0)
                            self.assertGreater(stats["bytes"][way]["kernel"], 0)
        self.assertGreater(replayed, 0, "bytes that the peer had not seen, in all rounds")


class Exit(SidestepTestCase):
    def test_a_process_that_ends_while_its_threads_write_breaks_nothing(self):
        for mode in ("block", "epoll-et"):
            for _ in range(4):
                with self.part(mode=mode):
                    command = [sidestep_harness.pair(), "server", "--mode", mode, "--connections", "8"]
                    server = self.start("server", command, True)
                    port = server.wait_listening()
                    command[1] = "client"
                    client = self.start("client", [*command, "--port", port, "--bytes", 1 << 40,
                                                   "--timeout", "1"], True)
                    client.wait(20, None)
                    server.wait(20, None)
                    # What the ends see depends on the kernel, because bytes were left unread.
                    self.assertNotIn("broke the protocol", server.stderr + client.stderr)
                    self.assertEqual(server.stats()["streams.engine"], 8)


if __name__ == "__main__":
    sidestep_harness.main()
