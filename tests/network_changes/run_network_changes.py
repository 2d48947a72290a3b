#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""What programs hear when a network interface goes down, comes up, changes its addresses or goes
away.

Runs in namespaces of its own, as root or as an ordinary user who may make them.
"""

import argparse
import os
import pathlib
import subprocess
import sys

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
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
