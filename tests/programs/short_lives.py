#!/usr/bin/env python3
"""Processes end while streams of theirs are about to leave the kernel; each stream must end in order.

    short_lives.py server PORT LIVES      accepts the streams of that many clients, reads them to their ends
    short_lives.py client PORT SEED       uses one stream until it moves, then opens others, and ends
"""

import ctypes, os, random, selectors, socket, sys, time
STREAMS = 40
LAST_WORDS = b"these are its last words"
role, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if role == "client":
    carriers = getattr(ctypes.CDLL(None), "sidestep_carriers", None)
    rng = random.Random(number)
    limit = time.monotonic() + 60  # an emulated device may take half a minute to open
    while True:
        try:
            first = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            assert time.monotonic() < limit
            time.sleep(0.2)
    first.sendall(LAST_WORDS)
    while carriers and carriers(first.fileno()) & 1 == 0 and time.monotonic() < limit:
        first.sendall(LAST_WORDS)
        time.sleep(0.05)
    assert not carriers or carriers(first.fileno()) >= 0
    streams = []
    for _ in range(STREAMS):
        stream = socket.create_connection(("127.0.0.1", port))
        stream.sendall(LAST_WORDS)
        if rng.random() < 0.5:
            stream.shutdown(socket.SHUT_WR)
        streams.append(stream)
    time.sleep(rng.random() * 0.05)
    os._exit(0)
listener = socket.create_server(("127.0.0.1", port), backlog=100)
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ)
left = number * (STREAMS + 1)
while left:
    for key, _ in selector.select():
        if key.fileobj is listener:
            selector.register(listener.accept()[0], selectors.EVENT_READ, [0])
            continue
        piece = key.fileobj.recv(65536)  # this must not fail
        key.data[0] += len(piece)
        if not piece:
            assert key.data[0] and key.data[0] % len(LAST_WORDS) == 0, key.data[0]
            selector.unregister(key.fileobj)
            key.fileobj.close()
            left -= 1
print("all right")
