#!/usr/bin/env python3
"""One process ends in the given way while it has streams to another, which prints what it sees of them.

    peer_that_ends.py ends|survives WAY PORT       with PORT 0, listens and prints the port
"""

import ctypes, errno, os, select, socket, sys, threading, time
NAMES = ["events", "so_error", "writes", "much", "half", "recv", "poll", "level", "edge"]
MUCH = 50000  # fits into the kernel's smallest buffers
carriers = getattr(ctypes.CDLL(None), "sidestep_carriers", None)
role, way, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
streams = {}
if port == 0:
    listener = socket.create_server(("127.0.0.1", 0))
    print("listening", listener.getsockname()[1], flush=True)
    for name in NAMES:
        streams[name] = listener.accept()[0]
else:
    for name in NAMES:
        streams[name] = socket.create_connection(("127.0.0.1", port))
# Talks until all streams have left the kernel, if they can; the listening process decides when.
last = False
for turn in range(1000):
    if port == 0:
        last = turn >= 5 and (not carriers or all(carriers(s.fileno()) == 3 for s in streams.values()))
    for stream in streams.values():
        stream.sendall(b"l" if last else b"t")
    answers = [stream.recv(1) for stream in streams.values()]
    last = last or b"l" in answers
    if last:
        break
    time.sleep(0.02)
if not last:
    sys.exit("the streams have not left the kernel")

if role == "ends":
    for name, stream in streams.items():
        stream.sendall(b"x" * MUCH if name == "much" else b"bye")
    assert streams["events"].recv(1) == b"g"
    if way == "close":
        for stream in streams.values():
            stream.close()
        print("closed", flush=True)
        sys.stdin.readline()
    elif way == "_exit":
        os._exit(0)
    elif way == "exception":
        raise RuntimeError("on purpose")
    elif way == "shutdown":
        for stream in streams.values():
            stream.shutdown(socket.SHUT_WR)
    elif way == "exec":
        os.execvp("true", ["true"])
    sys.exit(0)

said = {name: [] for name in NAMES}
def names_of(events):
    bits = {"IN": 1, "PRI": 2, "OUT": 4, "ERR": 8, "HUP": 16, "NVAL": 32, "RDHUP": 0x2000}
    return "|".join(name for name, bit in bits.items() if events & bit)
def call(name, function):
    try:
        result = function()
    except OSError as error:
        result = errno.errorcode[error.errno]
    said[name].append(result)
    return result
def events(name):
    poll = select.poll()
    poll.register(streams[name], select.POLLIN | select.POLLOUT | select.POLLRDHUP)
    said[name].append(names_of(dict(poll.poll(0)).get(streams[name].fileno(), 0)))
def wait_in_recv():
    call("recv", lambda: streams["recv"].recv(10))
def wait_in_poll():
    poll = select.poll()
    poll.register(streams["poll"], select.POLLIN | select.POLLRDHUP)
    said["poll"].append(names_of(poll.poll(60000)[0][1]))
def wait_in_epoll(name, edge):
    epoll = select.epoll()
    epoll.register(streams[name], select.EPOLLIN | select.EPOLLRDHUP | (select.EPOLLET if edge else 0))
    said[name].append(names_of(epoll.poll(60)[0][1]))
    call(name, lambda: streams[name].recv(10))
    if not edge:  # for one end, the kernel wakes once or twice
        said[name] += [names_of(events) for _, events in epoll.poll(0)]
for name, stream in streams.items():
    if name != "much":
        assert stream.recv(3, socket.MSG_WAITALL) == b"bye"
if way == "unread":
    for name, stream in streams.items():
        stream.sendall(b"unread" if name != "events" else b"")
streams["half"].shutdown(socket.SHUT_WR)
threads = [threading.Thread(target=wait_in_recv), threading.Thread(target=wait_in_poll),
           threading.Thread(target=wait_in_epoll, args=("level", False)),
           threading.Thread(target=wait_in_epoll, args=("edge", True))]
for thread in threads:
    thread.start()
time.sleep(0.3)
print("waiting", flush=True)
sys.stdin.readline()
streams["events"].sendall(b"g")
sys.stdin.readline()
for thread in threads:
    thread.join(60)
said["so_error"].append(streams["so_error"].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
for name in NAMES:
    events(name)
for name in ("much", "events", "so_error", "recv", "half"):
    if name == "much":
        got = 0
        while isinstance(data := call(name, lambda: streams["much"].recv(1 << 20)), bytes) and data:
            said[name].pop()
            got += len(data)
        said[name].append(got)
    for _ in range(2):
        call(name, lambda: streams[name].recv(2))
        events(name)
writers = ("writes", "much", "so_error", "poll")
for _ in range(3):
    for name in writers:
        call(name, lambda: streams[name].send(b"w", socket.MSG_NOSIGNAL))
    time.sleep(0.1)
    for name in writers:
        events(name)
for name in writers:
    call(name, lambda: streams[name].recv(1))
    said[name].append(streams[name].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
for name in NAMES:
    call(name, lambda: streams[name].shutdown(socket.SHUT_RDWR))
    events(name)
for name in NAMES:
    print(way, name, *said[name])
