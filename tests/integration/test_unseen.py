#!/usr/bin/env python3
"""Programs of which the library sees some or none of the calls: raw system calls, io_uring."""

import sys

import sidestep_harness
from sidestep_harness import BOTH, KERNEL, Mode, SidestepTestCase, pair

MB = 1 << 20
WAYS = ("block", "poll", "epoll-et")

PREFIX = """
import ctypes, mmap, socket, sys
SENDTO, RECVFROM = 44, 45  # x86-64

# What libc's syscall() does, which the library sees.
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("4889f8 4889f7 4889d6 4889ca 4d89c2 4d89c8 4c8b4c2408 0f05 c3"))
raw_call = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_long,
                            ctypes.c_long, ctypes.c_long, ctypes.c_long)(
    ctypes.addressof(ctypes.c_char.from_buffer(code)))

def send_past_the_library(sock, data):
    return raw_call(SENDTO, sock.fileno(), data, len(data), 0x4000, 0, 0)

def await_engine(sock):
    # Each answer is read: after some of them the engine carries the stream.
    for _ in range(2000):
        sock.sendall(b"ping")
        assert sock.recv(4, socket.MSG_WAITALL) == b"ping"
"""

# Answers until something goes wrong.
SERVER = PREFIX + """
listener = socket.create_server(("127.0.0.1", 0))
print("listening", listener.getsockname()[1], flush=True)
sock, _ = listener.accept()
try:
    while True:
        data = sock.recv(4096)
        if not data:
            print("end")
            break
        if data.strip(b"ping"):
            print("strange", data)
        sock.sendall(data)
except OSError as error:
    print(type(error).__name__)
"""

# Uses the library first, and then goes past it.
CLIENT = PREFIX + """
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
await_engine(sock)
sent = send_past_the_library(sock, b"ping")
print("sent", sent)
sock.settimeout(20)
try:
    print("got", sock.recv(100))
except OSError as error:
    print(type(error).__name__)
"""


# Never uses the library, and gives the stream time to leave the kernel.
RAW_CLIENT = PREFIX + """
import time
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
time.sleep(0.5)
buffer = ctypes.create_string_buffer(100)
for _ in range(3):
    sent = send_past_the_library(sock, b"pingping")
    got = raw_call(RECVFROM, sock.fileno(), buffer, 8, socket.MSG_WAITALL, 0, 0)
    print("sent", sent, "got", got, buffer.value)
"""


class Unseen(SidestepTestCase):
    def transfer(self, mode, way, server_io, client_io):
        """Runs a pair of programs that check every byte themselves."""
        server = self.start("server", [pair(), "server", "--connections", 2, "--mode", way,
                                       "--io", server_io], mode.server)
        client = self.start("client", [pair(), "client", "--port", server.wait_listening(),
                                       "--connections", 2, "--mode", way, "--io", client_io,
                                       "--bytes", 8 * MB], mode.client)
        client.wait(60)
        server.wait(60)
        return server, client

    def test_ends_whose_calls_are_not_seen_stay_on_the_kernel(self):
        for way in WAYS:
            for server_io, client_io in (("raw", "raw"), ("raw", "mixed"), ("mixed", "raw")):
                for mode in (KERNEL, BOTH):
                    with self.part(way=way, server=server_io, client=client_io, mode=mode.name):
                        for program in self.transfer(mode, way, server_io, client_io):
                            self.assert_on_kernel(program)

    def run_pair(self, mode: Mode, program):
        server = self.start("server", [sys.executable, "-c", SERVER], mode.server)
        client = self.start("client", [sys.executable, "-c", program, server.wait_listening()],
                            mode.client)
        client.wait(40)
        server.wait(40)
        return server, client

    def test_a_client_that_takes_its_time(self):
        for mode in (KERNEL, BOTH):
            with self.part(mode=mode.name):
                server, client = self.run_pair(mode, RAW_CLIENT)
                self.assertEqual(client.stdout, "sent 8 got 8 b'pingping'\n" * 3)
                self.assertEqual(server.stdout.split("\n")[1:], ["end", ""])
                self.assert_on_kernel(server)
                self.assert_on_kernel(client)
                if mode is BOTH:
                    self.assertEqual(client.stats()["kernel_reasons"],
                                     {"not read or written through the library": 1})

    def test_bytes_past_the_library_on_a_stream_of_the_engine_end_it(self):
        with self.part(mode=KERNEL.name):
            server, client = self.run_pair(KERNEL, CLIENT)
            self.assertEqual(client.stdout.split("\n"), ["sent 4", "got b'ping'", ""])
            self.assertEqual(server.stdout.split("\n")[1:], ["end", ""])
        # The kernel's order is impossible to keep, because nobody knows what the bytes follow.
        with self.part(mode=BOTH.name):
            server, client = self.run_pair(BOTH, CLIENT)
            self.assert_all_over_engine(server, client, streams=1)
            self.assertEqual(client.stdout.split("\n"), ["sent 4", "ConnectionResetError", ""])
            self.assertEqual(server.stdout.split("\n")[1:], ["ConnectionResetError", ""])
            self.assertIn("4 bytes were sent past the shim; the stream is lost",
                          (client.directory / "sidestep.log").read_text())


if __name__ == "__main__":
    sidestep_harness.main()
