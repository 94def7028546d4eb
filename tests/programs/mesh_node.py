#!/usr/bin/env python3
"""One of many nodes, with a stream to each of the others.

In each round both ends of each stream send SIZE bytes, which differ from stream to stream; each byte is
compared. A pause before each round lets streams move.

    mesh_node.py NUMBER COUNT FIRST_PORT SIZE ROUNDS PAUSE
"""

import hashlib, selectors, socket, sys, time
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
# No node ends before every node has received everything.
for stream in streams.values():
    stream.shutdown(socket.SHUT_WR)
for stream in streams.values():
    stream.setblocking(True)
    assert stream.recv(1) == b""
print("all right")
