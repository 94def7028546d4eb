"""Hosts that a test makes for itself: network namespaces joined by a cable."""

import contextlib
import ctypes
import os
import subprocess
import threading

from sidestep_harness import SidestepTestCase

CLONE_NEWNET = 0x40000000


class Host:
    """A network namespace. Only a descriptor keeps it alive, so no process and no name can be left behind."""

    def __init__(self, number):
        self.ipv4 = f"10.77.0.{number}"
        self.ipv6 = f"fd77::{number}"
        self._made = None
        thread = threading.Thread(target=self._make)  # unshare() affects only the calling thread
        thread.start()
        thread.join()
        if isinstance(self._made, OSError):
            raise self._made
        self.path = f"/proc/{os.getpid()}/fd/{self._made}"
        self.run("ip", "link", "set", "lo", "up")

    def _make(self):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET) == 0:
            self._made = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        else:
            error = ctypes.get_errno()
            self._made = OSError(error, "a network namespace: " + os.strerror(error))

    def command(self, *argv):
        """Returns the command line that runs a program on this host; the pid does not change."""
        return ["nsenter", f"--net={self.path}", "--", *map(str, argv)]

    def run(self, *argv):
        subprocess.run(self.command(*argv), check=True)

    def connect(self, other):
        """Lays a cable between the two hosts and gives both ends their addresses."""
        self.lay_cable(other, "cable")
        for host in (self, other):
            host.run("ip", "address", "add", f"{host.ipv4}/24", "dev", "cable")
            host.run("ip", "address", "add", f"{host.ipv6}/64", "dev", "cable", "nodad")
            host.run("ip", "link", "set", "cable", "up")

    def lay_cable(self, other, name):
        """Lays a cable whose end on this host is called `name`; the other host's end is called "cable"."""
        self.run("ip", "link", "add", name, "type", "veth", "peer", "name", "cable", "netns", other.path)

    def close(self):
        os.close(self._made)


class HostsTestCase(SidestepTestCase):
    # Tests of keys set an environment of their own.
    environment = {"SIDESTEP_ALLOW_NO_KEY": "yes"}

    @contextlib.contextmanager
    def hosts(self, **parameters):
        with self.part(**parameters), contextlib.ExitStack() as stack:
            here, there = Host(1), Host(2)
            for host in (here, there):
                stack.callback(host.close)
            here.connect(there)
            yield here, there
