#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Two ends of a stream by ordinary sockets, for run_rsockets.py: one sends everything back.

stream_peer.py echo PORT         serves one connection, without blocking, until the end
stream_peer.py check PORT SIZE   sends that much in random sizes both ways at once, compares
stream_peer.py wait PORT         tells how the connection ends
stream_peer.py talk PORT SIZE HOW  serves one connection: sends that much, and ends at once, by
                                 `close`, or by `exit` with the descriptor open
stream_peer.py hear PORT SIZE    looks late, and compares what came
"""

import os
import random
import select
import socket
import sys
import time

HOST = "127.0.0.1"
PIECE = 200_000


def echo(port):
    listener = socket.create_server((HOST, port))
    peer, _ = listener.accept()
    peer.setblocking(False)
    held = bytearray()
    is_open = True
    poller = select.poll()
    while is_open or held:
        wanted = (select.POLLIN if is_open and len(held) < PIECE else 0) | (
            select.POLLOUT if held else 0
        )
        poller.register(peer, wanted)
        poller.poll(20_000)
        try:
            if is_open and len(held) < PIECE:
                got = peer.recv(random.randint(1, PIECE))
                is_open = bool(got)
                held += got
        except BlockingIOError:
            pass
        try:
            if held:
                del held[: peer.send(held[: random.randint(1, PIECE)])]
        except BlockingIOError:
            pass
    peer.shutdown(socket.SHUT_WR)
    peer.close()


def check(port, size):
    data = random.Random(port).randbytes(size)
    back = bytearray()
    sent = 0
    with socket.create_connection((HOST, port)) as peer:
        peer.setblocking(False)
        poller = select.poll()
        while True:
            poller.register(peer, select.POLLIN | (select.POLLOUT if sent < size else 0))
            if not poller.poll(20_000):
                sys.exit(f"nothing happens: {sent} sent, {len(back)} received")
            try:
                got = peer.recv(random.randint(1, PIECE))
                if not got:
                    break
                back += got
            except BlockingIOError:
                pass
            try:
                if sent < size:
                    sent += peer.send(data[sent : sent + random.randint(1, PIECE)])
                    if sent == size:
                        peer.shutdown(socket.SHUT_WR)
            except BlockingIOError:
                pass
        # The descriptor of an rsocket is one of epoll(7).
        is_rsocket = "eventpoll" in os.readlink(f"/proc/self/fd/{peer.fileno()}")
    if back != data:
        sys.exit(f"{len(back)} bytes came back, {size} were sent, and they differ")
    print("same", len(back), "by an rsocket" if is_rsocket else "by TCP")


def wait(port):
    with socket.create_connection((HOST, port)) as peer:
        print("connected", flush=True)
        try:
            print("end", len(peer.recv(100)))
        except OSError as error:
            print("error", error.errno)


def talk(port, size, how):
    listener = socket.create_server((HOST, port))
    peer, _ = listener.accept()
    peer.sendall(random.Random(port).randbytes(size))
    if how == "close":
        peer.close()
    else:
        peer.detach()  # so that the interpreter does not close it


def hear(port, size):
    with socket.create_connection((HOST, port)) as peer:
        heard = bytearray()
        time.sleep(0.3)  # until nothing more fits
        while got := peer.recv(random.randint(1, 100_000)):
            heard += got
    if heard != random.Random(port).randbytes(size):
        sys.exit(f"{len(heard)} bytes of {size} came, or others")
    print("heard", len(heard))


def main():
    role, port = sys.argv[1], int(sys.argv[2])
    if role == "echo":
        echo(port)
    elif role == "check":
        check(port, int(sys.argv[3]))
    elif role == "talk":
        talk(port, int(sys.argv[3]), sys.argv[4])
    elif role == "hear":
        hear(port, int(sys.argv[3]))
    else:
        wait(port)


if __name__ == "__main__":
    main()
