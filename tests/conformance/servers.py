#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Servers that send everything back, each in one of the ways that real ones work, for
run_rsockets.py:

servers.py asyncio PORT   epoll(7), as Python's event loop does
servers.py edges PORT     epoll(7) with EPOLLET
servers.py fork PORT      a process for each connection
servers.py dup PORT       by a copy of the descriptor, and FIONREAD before each read
"""

import asyncio
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios

HOST = "127.0.0.1"
PIECE = 65536


def serve_asyncio(port):
    async def serve(reader, writer):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def run():
        server = await asyncio.start_server(serve, HOST, port)
        await server.serve_forever()

    asyncio.run(run())


class Peer:
    """A connection of serve_edges: reads until nothing is there, writes until nothing fits."""

    def __init__(self, connection):
        self.connection = connection
        self.held = bytearray()
        self.is_open = True
        self.may_read = self.may_write = False

    def work(self, events):
        self.may_read |= bool(events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR))
        self.may_write |= bool(events & select.EPOLLOUT)
        moved = True
        while moved:
            moved = self.read() if len(self.held) < 4 * PIECE else False
            moved = self.write() or moved
        return self.is_open or self.held

    def read(self):
        if not self.may_read or not self.is_open:
            return False
        try:
            data = self.connection.recv(PIECE)
        except BlockingIOError:
            self.may_read = False
            return False
        self.is_open = bool(data)
        self.held += data
        return True

    def write(self):
        if not self.may_write or not self.held:
            return False
        try:
            del self.held[: self.connection.send(self.held)]
        except BlockingIOError:
            self.may_write = False
            return False
        return True


def serve_edges(port):
    listener = socket.create_server((HOST, port))
    listener.setblocking(False)
    poller = select.epoll()
    poller.register(listener, select.EPOLLIN)
    peers = {}
    both = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
    while True:
        for fd, events in poller.poll():
            if fd == listener.fileno():
                connection, _ = listener.accept()
                connection.setblocking(False)
                peers[connection.fileno()] = Peer(connection)
                poller.register(connection, both)
            elif not peers[fd].work(events):
                peers.pop(fd).connection.close()


def send_back(connection):
    while data := connection.recv(PIECE):
        connection.sendall(data)
    connection.close()


def serve_fork(port):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.create_server((HOST, port))
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            send_back(connection)
            sys.exit(0)
        connection.close()


def serve_dup(port):
    listener = socket.create_server((HOST, port))
    while True:
        first, _ = listener.accept()
        number = os.dup(first.fileno())
        os.dup2(number, 100)
        first.close()
        os.close(number)
        connection = socket.socket(fileno=100)
        poller = select.poll()
        poller.register(connection, select.POLLIN)
        while True:
            poller.poll()
            there = fcntl.ioctl(connection, termios.FIONREAD, struct.pack("i", -1))
            size = struct.unpack("i", there)[0]
            data = connection.recv(max(size, 1))
            if len(data) != size:
                sys.exit(f"{len(data)} bytes where {size} were to be read")
            if not data:
                break
            connection.sendall(data)
        connection.close()


def main():
    serve = {"asyncio": serve_asyncio, "edges": serve_edges, "fork": serve_fork, "dup": serve_dup}
    serve[sys.argv[1]](int(sys.argv[2]))


if __name__ == "__main__":
    main()
