"""A ring all-reduce over plain sockets, between the parts of a gang. Needs nothing but Python's standard library.

Each part reads who it is and where all meet from the environment that every launcher gives: RANK, WORLD_SIZE,
MASTER_ADDR, MASTER_PORT. Rank 0 listens there and tells all where each can be reached; then each part sends to the next
and hears from the one before. The sum is checked, so a wrong answer is an exit status.
"""

import json
import os
import socket
import struct
import sys
import threading
import time

LENGTH = 10_000
PATIENCE_S = 60

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
family = socket.getaddrinfo(*master, type=socket.SOCK_STREAM)[0][0]


def listener(port):
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", port))
    server.listen(size)
    server.settimeout(PATIENCE_S)
    return server


def connect(place):
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection(place, timeout=PATIENCE_S)
        except (ConnectionRefusedError, TimeoutError, socket.timeout):
            if time.monotonic() > until:
                sys.exit(f"nobody listens at {place}")
            time.sleep(0.05)


def meet(own_port):
    """Where each rank listens, by rank."""
    if rank == 0:
        places, lines = {0: (master[0], own_port)}, []
        with listener(master[1]) as server:
            while len(places) < size:
                other = server.accept()[0]
                line = other.makefile("rw")
                said = json.loads(line.readline())
                places[said["rank"]] = (other.getpeername()[0], said["port"])
                lines.append(line)
            for line in lines:
                line.write(json.dumps(places) + "\n")
                line.close()
        return places
    with connect(master) as server, server.makefile("rw") as line:
        line.write(json.dumps({"rank": rank, "port": own_port}) + "\n")
        line.flush()
        return {int(at): tuple(place) for at, place in json.loads(line.readline()).items()}


def exchange(to, back, numbers):
    """Sends numbers to the next part and gives what the one before sent."""
    sender = threading.Thread(target=to.sendall, args=(struct.pack(f"!I{len(numbers)}q", len(numbers), *numbers),))
    sender.start()
    (count,) = struct.unpack("!I", exactly(back, 4))
    heard = list(struct.unpack(f"!{count}q", exactly(back, 8 * count)))
    sender.join()
    return heard


def exactly(source, count):
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            sys.exit("the part before is gone")
        data += more
    return data


def all_reduce(vector):
    if size == 1:
        return vector
    with listener(0) as server:
        places = meet(server.getsockname()[1])
        to = connect(places[(rank + 1) % size])
        back = server.accept()[0]
    bounds = [LENGTH * at // size for at in range(size + 1)]
    pieces = [vector[bounds[at] : bounds[at + 1]] for at in range(size)]
    for step in range(size - 1):
        heard = exchange(to, back, pieces[(rank - step) % size])
        at = (rank - step - 1) % size
        pieces[at] = [own + other for own, other in zip(pieces[at], heard)]
    for step in range(size - 1):
        pieces[(rank - step) % size] = exchange(to, back, pieces[(rank + 1 - step) % size])
    return [number for piece in pieces for number in piece]


began = time.monotonic()
result = all_reduce([at + 1_000_000 * rank for at in range(LENGTH)])
shift = 1_000_000 * size * (size - 1) // 2
if result != [at * size + shift for at in range(LENGTH)]:
    sys.exit("the sum is wrong")
print(f"allreduce over sockets: rank {rank} of {size}, {LENGTH} numbers, sum {sum(result)}", flush=True)
print(f"met at {master[0]} port {master[1]}, {1_000 * (time.monotonic() - began):.0f} ms", flush=True)
