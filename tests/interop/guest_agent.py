# SPDX-License-Identifier: MIT
"""The guest's side of the channel to the host: configures the network, makes rxe0, runs programs.

A line of JSON a message, both ways, over a port of virtio-serial. From the host:
  {"start": ID, "words": [...], "folder": ..., "environment": {...}}
  {"kill": ID}   {"listening": PORT}   {"bound": PORT}
  {"serving": [PORT SPACE, PORT]}   {"off": true}
To the host:
  {"ready": seconds since the boot}   {"failed": why}
  {"id": ID, "output": text}   {"id": ID, "status": N}   {"answer": value}
"""

import contextlib
import glob
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time

PORTS = "/dev/vport*p1"
LISTENING = "0A"  # the state in /proc/net/tcp
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Channel:
    def __init__(self):
        # The driver makes the node a moment after the device.
        while not glob.glob(PORTS):
            time.sleep(0.01)
        self.file = open(glob.glob(PORTS)[0], "r+b", buffering=0)
        self.lock = threading.Lock()

    def messages(self):
        rest = b""
        while True:
            data = self.file.read(65536)
            if not data:  # nobody at the other end just now
                time.sleep(0.02)
                continue
            *lines, rest = (rest + data).split(b"\n")
            yield from map(json.loads, lines)

    def send(self, **message):
        data = memoryview(json.dumps(message).encode() + b"\n")
        with self.lock:
            while data:
                data = data[self.file.write(data) or 0 :]


def settings():
    """The values of interop.NAME=VALUE on the kernel's command line."""
    with open("/proc/cmdline", encoding="ascii") as line:
        pairs = [word[8:].split("=", 1) for word in line.read().split() if word[:8] == "interop."]
    return {pair[0]: pair[1] for pair in pairs}


def call(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stdout.decode(errors='replace')}")


def configure():
    values = settings()
    for name in ("default", "all", "eth0"):  # addresses that work at once, and a quiet wire
        for setting in ("accept_dad", "dad_transmits", "accept_ra", "router_solicitations"):
            with contextlib.suppress(FileNotFoundError):  # not each of them has every setting
                with open(f"/proc/sys/net/ipv6/conf/{name}/{setting}", "w", encoding="ascii") as f:
                    f.write("0")
    call("ip", "link", "set", "lo", "up")
    call("ip", "link", "set", "eth0", "mtu", values["mtu"], "up")
    for address in values["addresses"].split(","):
        call("ip", "address", "add", address, "dev", "eth0")
    call("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")
    infinity = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, infinity)


class Jobs:
    def __init__(self, channel):
        self.channel = channel
        self.running = {}

    def start(self, number, message):
        try:
            process = subprocess.Popen(
                message["words"],
                cwd=message["folder"],
                env={**os.environ, **message["environment"]},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as problem:
            self.channel.send(id=number, output=f"{message['words'][0]}: {problem}\n")
            self.channel.send(id=number, status=127)
            return
        self.running[number] = process
        threading.Thread(target=self.follow, args=(number, process), daemon=True).start()

    def follow(self, number, process):
        while data := os.read(process.stdout.fileno(), 65536):
            self.channel.send(id=number, output=data.decode(errors="replace"))
        status = process.wait()
        del self.running[number]
        self.channel.send(id=number, status=status)

    def kill(self, number):
        process = self.running.get(number)
        if process:
            os.killpg(process.pid, signal.SIGKILL)


def is_listening(port):
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as lines:
            for fields in map(str.split, lines):
                if fields[3] == LISTENING and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    return True
    return False


def is_bound(port):
    """Whether a socket of UDP has the port."""
    for table in ("/proc/net/udp", "/proc/net/udp6"):
        with open(table, encoding="ascii") as lines:
            if any(f":{port:04X} " in line for line in lines):
                return True
    return False


def is_serving(space, port):
    """Whether a program listens by rdma_cm."""
    shown = subprocess.run(["rdma", "resource", "show", "cm_id"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, check=False).stdout.decode(errors="replace")
    return any(f"ps {space.upper()} " in line and "state LISTEN" in line and f":{port} " in line
               for line in shown.splitlines())


def serve(channel):
    jobs = Jobs(channel)
    for message in channel.messages():
        if "start" in message:
            jobs.start(message["start"], message)
        elif "kill" in message:
            jobs.kill(message["kill"])
        elif "listening" in message:
            channel.send(answer=is_listening(message["listening"]))
        elif "bound" in message:
            channel.send(answer=is_bound(message["bound"]))
        elif "serving" in message:
            channel.send(answer=is_serving(*message["serving"]))
        elif "off" in message:
            return


def main():
    os.environ.update(PATH=PATH, HOME="/root", LANG="C.UTF-8")
    channel = Channel()
    try:
        configure()
    except (OSError, KeyError) as problem:
        channel.send(failed=str(problem))
    else:
        with open("/proc/uptime", encoding="ascii") as uptime:
            channel.send(ready=float(uptime.read().split()[0]))
        serve(channel)
    os.sync()
    with open("/proc/sysrq-trigger", "w", encoding="ascii") as trigger:
        trigger.write("o")  # power off
    time.sleep(60)


if __name__ == "__main__":
    sys.exit(main())
