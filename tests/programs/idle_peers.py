#!/usr/bin/env python3
"""A server most of whose clients fall silent while the last one sends a lot.

    idle_peers.py server PORT CLIENTS         ends when the last client has sent everything
    idle_peers.py client PORT idle|busy       talks until its stream has moved, then waits, or sends BYTES
"""

import ctypes, hashlib, socket, sys, threading, time
BYTES = 8 << 20
LINE = bytes(range(100))
role, port, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def receive(stream, size):
    piece = stream.recv(size, socket.MSG_WAITALL)
    assert len(piece) == size, len(piece)
    return piece
def serve(stream):
    while (kind := stream.recv(1)) == b"t":
        stream.sendall(receive(stream, len(LINE)))
    if kind:
        stream.sendall(hashlib.sha256(receive(stream, BYTES)).digest())
        done.set()
if role == "server":
    done = threading.Event()
    streams, threads = [], []
    with socket.create_server(("127.0.0.1", port)) as listener:
        while len(streams) < int(what):
            streams.append(listener.accept()[0])
            threads.append(threading.Thread(target=serve, args=(streams[-1],)))
            threads[-1].start()
    done.wait()
    for one in streams:
        one.shutdown(socket.SHUT_WR)
    for one in threads:
        one.join()
    print("all right")
    sys.exit()
carriers = getattr(ctypes.CDLL(None), "sidestep_carriers", lambda _: 3)
limit = time.monotonic() + 60  # an emulated device may take half a minute to open
while True:
    try:
        stream = socket.create_connection(("127.0.0.1", port))
        break
    except ConnectionRefusedError:
        assert time.monotonic() < limit
        time.sleep(0.2)
def talk():
    stream.sendall(b"t" + LINE)
    assert receive(stream, len(LINE)) == LINE
while carriers(stream.fileno()) != 3 and time.monotonic() < limit:
    talk()
    time.sleep(0.05)
for _ in range(20):
    talk()
print("has moved", flush=True)
if what == "busy":
    data = LINE * (BYTES // len(LINE)) + LINE[:BYTES % len(LINE)]
    stream.sendall(b"d" + data)
    assert receive(stream, 32) == hashlib.sha256(data).digest()
assert stream.recv(1) == b""
print("all right")
