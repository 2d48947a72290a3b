#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""What programs hear when a network interface goes down, comes up, changes its addresses or goes
away; and of hosts that are there and have no RoCE.

Runs in namespaces of its own, as root or as an ordinary user who may make them.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

sys.dont_write_bytecode = True
TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "conformance"), str(TESTS / "wire_network")]
import library  # noqa: E402
from run_wire_network import INSIDE, TwoHosts, enter_namespaces, run  # noqa: E402

SECONDS = 30
MAC = "02:00:00:00:09:09"


class Watcher:
    """The probe, and how far its output has been read."""

    def __init__(self, program, words, variables):
        self.program = library.Program([program, *words], variables)
        self.read = 0
        self.expect("ready")

    def lines(self):
        return self.program.output().splitlines()[self.read:]

    def expect(self, *wanted):
        """These lines come next, and in this order."""
        library.wait_for(lambda: len(self.lines()) >= len(wanted)
                         or self.program.process.poll() is not None, SECONDS)
        found = self.lines()[:len(wanted)]
        self.read += len(found)
        if found != list(wanted):
            raise library.Failure(f"{found}, and not {list(wanted)}\n{self.program.output()}")


def watched(probe, words, variables, scene):
    """Runs `scene` with a watcher, on a fresh pair of interfaces."""
    hosts = TwoHosts(1500)
    watcher = None
    try:
        watcher = Watcher(probe, words, {**variables, "VERBENA_DEVICES": "va"})
        scene(watcher)
        # Nothing but what was expected: another change would come after all that came before.
        if watcher.lines():
            raise library.Failure(f"and more: {watcher.lines()}")
    finally:
        if watcher:
            watcher.program.kill()
        hosts.close()


def asynchronous(watcher):
    run("ip", "link", "set", "va", "down")
    watcher.expect("port error, port 1 down")
    run("ip", "link", "set", "va", "up")
    watcher.expect("port active, port 1 active")
    # IPv6 addresses went with the interface.
    run("ip", "addr", "add", "10.9.0.9/24", "dev", "va")
    watcher.expect("GID table change, port 1 active")
    run("ip", "addr", "del", "10.9.0.9/24", "dev", "va")
    watcher.expect("GID table change, port 1 active")
    run("ip", "link", "del", "va")
    watcher.expect("local catastrophic error, port 1 down")


def addresses(watcher):
    """An address leaves and comes back, another one does not matter."""
    run("ip", "addr", "add", "10.9.0.9/24", "dev", "va")
    run("ip", "addr", "del", "10.9.0.9/24", "dev", "va")
    run("ip", "addr", "del", "10.9.0.1/24", "dev", "va")
    watcher.expect("RDMA_CM_EVENT_ADDR_CHANGE")
    run("ip", "addr", "add", "10.9.0.1/24", "dev", "va")
    run("ip", "link", "set", "va", "address", MAC)
    watcher.expect("RDMA_CM_EVENT_ADDR_CHANGE")
    run("ip", "link", "del", "va")
    watcher.expect("RDMA_CM_EVENT_DEVICE_REMOVAL")


def moved(watcher):
    """To another interface of the same host."""
    run("ip", "link", "add", "vc", "type", "veth", "peer", "name", "vd")
    try:
        run("ip", "addr", "del", "10.9.0.1/24", "dev", "va")
        run("ip", "addr", "add", "10.9.0.1/24", "dev", "vc")
        watcher.expect("RDMA_CM_EVENT_ADDR_CHANGE")
    finally:
        run("ip", "link", "del", "vc")


def costs_nothing(probe, variables):
    """Who has only opened a device has no socket, and so hears nothing and does nothing."""
    hosts = TwoHosts(1500)
    try:
        done = subprocess.run([probe, "descriptors", "vrb_va"], capture_output=True, text=True,
                              env={**variables, "VERBENA_DEVICES": "va"}, check=False,
                              timeout=SECONDS)
        if done.stdout != "0 sockets\n":
            raise library.Failure(done.stdout + done.stderr)
    finally:
        hosts.close()


# What listens on UDP port 4791 there and says nothing.
MUTE = """
import socket, time
taken = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
taken.bind(("::", 4791))
print("mute", flush=True)
"""
# Tells 10.9.0.1, in the name of 10.9.0.2, that each of these source ports reached nobody.
FORGE = """
import socket, struct, sys
def total(data):
    words = struct.unpack(f"!{len(data) // 2}H", data)
    folded = sum(words)
    while folded >> 16:
        folded = (folded & 0xffff) + (folded >> 16)
    return ~folded & 0xffff
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
for port in sys.argv[1:]:
    sent = struct.pack("!BBHHHBBH4s4sHHHH", 0x45, 0, 328, 0, 0x4000, 64, 17, 0,
                       socket.inet_aton("10.9.0.1"), socket.inet_aton("10.9.0.2"),
                       int(port), 4791, 308, 0)
    for code in (3, 10, 13):
        head = struct.pack("!BBHI", 3, code, 0, 0)
        head = struct.pack("!BBHI", 3, code, total(head + sent), 0)
        raw.sendto(head + sent, ("10.9.0.1", 0))
"""


def python_there(hosts, text, *words):
    return library.Program([*hosts.enter, sys.executable, "-c", text, *words], dict(os.environ))


def ask(variables, address, *words):
    """A client whose connection cannot come about: all that it says."""
    client = library.Program(["rping", "-c", "-a", address, "-C", "1", *words],
                             {**variables, "VERBENA_DEVICES": "va"})
    try:
        library.wait_for(lambda: client.process.poll() is not None, SECONDS)
        return client.output()
    finally:
        client.kill()


def closed(variables, address):
    """Far sooner than a client waits that hears nothing."""
    hosts = TwoHosts(1500)
    try:
        said = ask(variables, address)
        if "RDMA_CM_EVENT_UNREACHABLE, error -111" not in said:
            raise library.Failure(said)
    finally:
        hosts.close()


def mute(variables):
    """Nothing comes, not even by ICMP: the event comes when all patience is used up."""
    hosts = TwoHosts(1500)
    listener = python_there(hosts, MUTE + "time.sleep(1000)")
    try:
        library.wait_for(lambda: "mute" in listener.output(), SECONDS)
        said = ask({**variables, "VERBENA_CONNECT_SECONDS": "4"}, "10.9.0.2")
        if "RDMA_CM_EVENT_UNREACHABLE, error -110" not in said:
            raise library.Failure(said)
    finally:
        listener.kill()
        hosts.close()


def late(variables):
    """A server that starts a moment after its client asks."""
    hosts = TwoHosts(1500)
    client = library.Program(["rping", "-c", "-a", "10.9.0.2", "-C", "5"],
                             {**variables, "VERBENA_DEVICES": "va"})
    server = None
    try:
        time.sleep(0.6)  # the first request was sent again, and refused
        server = library.Program([*hosts.enter, "rping", "-s", "-C", "5"],
                                 {**variables, "VERBENA_DEVICES": "vb"})
        library.wait_for(lambda: client.process.poll() is not None, SECONDS)
        if client.process.poll() != 0:
            raise library.Failure(library.told(client, server))
    finally:
        for program in (client, server):
            if program:
                program.kill()
        hosts.close()


def unreachable():
    """How many messages of that kind the kernel has taken."""
    with open("/proc/net/snmp", encoding="ascii") as table:
        names, values = [line.split() for line in table if line.startswith("Icmp:")]
    return int(values[names.index("InDestUnreachs")])


def forged(variables):
    """What is connected takes no notice of ICMP."""
    hosts = TwoHosts(1500)
    server = library.Program([*hosts.enter, "rping", "-s"], {**variables, "VERBENA_DEVICES": "vb"})
    client = None
    try:
        library.wait_for(lambda: hosts.serves(0x1061C06), SECONDS)
        client = library.Program(["rping", "-c", "-a", "10.9.0.2", "-v"],
                                 {**variables, "VERBENA_DEVICES": "va"})
        if not library.wait_for(lambda: "rdma-ping-100:" in client.output(), SECONDS):
            raise library.Failure("no connection\n" + library.told(client, server))
        with open("/proc/net/udp6", encoding="ascii") as table:
            ports = {str(int(line.split()[1].rsplit(":", 1)[1], 16)) for line in list(table)[1:]}
        heard = unreachable()
        liar = python_there(hosts, FORGE, *sorted(ports | {"4791"}))
        if liar.process.wait(SECONDS) != 0 or unreachable() - heard < len(ports):
            raise library.Failure(f"the kernel took no notice, either\n{liar.output()}")
        before = len(client.output())
        if not library.wait_for(lambda: len(client.output()) > before + 10000
                                or client.process.poll() is not None, SECONDS):
            raise library.Failure("the client stands still\n" + client.output()[-1000:])
        if client.process.poll() is not None:
            raise library.Failure(client.output()[-1000:])
        return f"{len(ports)} ports"
    finally:
        for program in (client, server):
            if program:
                program.kill()
        hosts.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", dest="folder", default=os.environ.get("VERBENA_LIBRARY"))
    parser.add_argument("--probe", metavar="PROGRAM", required=True, help="changes_probe")
    parser.add_argument("--only", metavar="REGEX", help="run only the cases whose name matches")
    options = parser.parse_args()
    if not options.folder:
        parser.error("--library or VERBENA_LIBRARY is needed")
    if INSIDE not in os.environ:
        enter_namespaces()
    variables = library.environment(options.folder)
    report = library.Report(options.only)
    run("ip", "link", "set", "lo", "up")
    for what in ("verbs", "objects"):
        report.case(f"asynchronous events, {what}", lambda w=what: watched(
            options.probe, [w, "vrb_va"], variables, asynchronous))
    for how, where in (("bound", "10.9.0.1"), ("listening", "10.9.0.1"), ("resolved", "10.9.0.2")):
        report.case(f"rdma_cm, {how}", lambda h=how, w=where: watched(
            options.probe, [h, w], variables, addresses))
        report.case(f"rdma_cm, {how}, an address moves", lambda h=how, w=where: watched(
            options.probe, [h, w], variables, moved))
    report.case("an open device costs nothing", lambda: costs_nothing(options.probe, variables))
    for address in ("10.9.0.2", "fd00::2", "fe80::2%va"):
        report.case(f"no RoCE at {address}", lambda a=address: closed(variables, a))
    report.case("a host that says nothing", lambda: mute(variables))
    report.case("a server that starts late", lambda: late(variables))
    report.case("forged ICMP", lambda: forged(variables))
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
