#!/usr/bin/env python3
"""Many processes, each with a stream to each other, over one RDMA device."""

import json
import textwrap

import lab_case
from lab_case import LabTestCase, build_dir

PORT = 7200
KB = 1 << 10

# One of many: a stream to each of the others, over which both ends send as many bytes in each round,
# of which no two streams have the same; each byte is compared. A pause lets streams move before.
NODE = textwrap.dedent("""
    import hashlib, os, selectors, socket, sys, time
    me, count, port, size, rounds, pause = map(int, sys.argv[1:7])
    def bytes_of(sender, receiver, turn):
        seed = hashlib.sha256(b"%d %d %d" % (sender, receiver, turn)).digest()
        return (seed * (size // len(seed) + 1))[:size]
    listener = socket.create_server(("127.0.0.1", port + me), backlog=count)
    streams = {}
    for other in range(me):
        while True:
            try:
                streams[other] = socket.create_connection(("127.0.0.1", port + other))
                break
            except ConnectionRefusedError:
                time.sleep(0.2)
        streams[other].sendall(me.to_bytes(2, "big"))
    while len(streams) < count - 1:
        stream, _ = listener.accept()
        streams[int.from_bytes(stream.recv(2, socket.MSG_WAITALL), "big")] = stream
    for stream in streams.values():
        stream.setblocking(False)
    for turn in range(rounds):
        time.sleep(pause)
        out = {other: memoryview(bytes_of(me, other, turn)) for other in streams}
        due = {other: memoryview(bytes_of(other, me, turn)) for other in streams}
        selector = selectors.DefaultSelector()
        for other, stream in streams.items():
            selector.register(stream, selectors.EVENT_READ | selectors.EVENT_WRITE, other)
        while any(out.values()) or any(due.values()):
            for key, events in selector.select():
                other, stream = key.data, key.fileobj
                if events & selectors.EVENT_WRITE and out[other]:
                    out[other] = out[other][stream.send(out[other]):]
                if events & selectors.EVENT_READ and due[other]:
                    piece = stream.recv(len(due[other]))
                    assert piece and piece == due[other][:len(piece)], (other, turn, len(due[other]))
                    due[other] = due[other][len(piece):]
                wanted = (selectors.EVENT_READ if due[other] else 0) | (
                    selectors.EVENT_WRITE if out[other] else 0)
                if not wanted:
                    selector.unregister(stream)
                elif wanted != key.events:
                    selector.modify(stream, wanted, other)
    # Nobody ends before all have all.
    for stream in streams.values():
        stream.shutdown(socket.SHUT_WR)
    for stream in streams.values():
        stream.setblocking(True)
        assert stream.recv(1) == b""
    print("all right")
""")


class Mesh(LabTestCase):
    guests = 1
    memory = "3G"

    def run_mesh(self, count, size, rounds, pause, **options):
        """The statistics of `count` nodes, in which every byte was right."""
        (guest,) = self.lab.guests
        guest.run("rm -f /tmp/mesh-*.json")
        nodes = []
        for me in range(count):
            env = {"LD_PRELOAD": str(build_dir() / "libsidestep.so"), "SIDESTEP_DEVICE": "verbs",
                   "SIDESTEP_STATS_FILE": f"/tmp/mesh-{me}.json", "SIDESTEP_ORB_SIZE": "128K",
                   "SIDESTEP_LOG_LEVEL": "warn",
                   **{f"SIDESTEP_{key.upper()}": str(value) for key, value in options.items()}}
            nodes.append(guest.start(["python3", "-c", NODE, *map(str, (
                me, count, PORT, size, rounds, pause))], env=env))
        for node in nodes:
            self.assertEqual(node.wait(240), 0, node.output())
            self.assertIn("all right", node.output())
        return [json.loads(text) for text in
                guest.run("cat /tmp/mesh-*.json").output.replace("}{", "}\n{").splitlines()]

    def test_one_queue_pair_for_each_pair_of_processes(self):
        count = 32
        for stats in self.run_mesh(count, 64 * KB, 3, 8):
            self.assertEqual(stats["kernel_reasons"], {})
            self.assertEqual(stats["streams.engine"], count - 1)
            self.assertEqual(stats["engine"]["connections_opened"], count - 1)
            self.assertEqual(stats["engine"]["connections_evicted"], 0)

    def test_more_peers_than_connections(self):
        count = 16
        nodes = self.run_mesh(count, 64 * KB, 3, 4, connections=8)
        for stats in nodes:
            self.assertEqual(stats["streams.total"], count - 1)
            # Those whose connection has made way come back as long as they are used.
            self.assertGreater(stats["streams.engine"], 0)
        self.assertGreater(sum(stats["engine"]["connections_evicted"] for stats in nodes), 0)


if __name__ == "__main__":
    lab_case.main()
