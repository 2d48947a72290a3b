#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Verbena and Linux's rxe in one machine: the virtual machine of the interop test, both ends of
each program in it. For information: its processors are emulated, so that code costs something else
than elsewhere, and what the two cost in relation to each other is only a hint.

rxe hands packets from one of its queue pairs to another inside the kernel; ours, on the wire, go by
UDP and the loopback interface. The last column is what programs get that ask for nothing: memory.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True
import guest  # noqa: E402
import kernel  # noqa: E402
import lab  # noqa: E402
from lab import library  # noqa: E402

MTU = 4200
GID = 1  # IPv4, in the GID tables of both
PORT = 21000
SECONDS = 120
# Program, options, column of the result, its unit, and whether more is better.
MEASURED = (
    ("ib_send_lat -s 2 -n 2000", 4, "us", False),
    ("ib_write_lat -s 2 -n 2000", 4, "us", False),
    ("ib_read_lat -s 2 -n 2000", 4, "us", False),
    ("ib_write_bw -s 65536 -n 500 -m 4096", 3, "MiB/s", True),
    ("ib_write_bw -s 65536 -n 200 -m 1024", 3, "MiB/s", True),
    ("ib_read_bw -s 65536 -n 500 -m 4096", 3, "MiB/s", True),
    ("ib_send_bw -s 65536 -n 500 -m 4096", 3, "MiB/s", True),
    ("ib_write_bw -s 8 -n 5000", 4, "M/s", True),
    ("ib_send_bw -s 8 -n 5000", 4, "M/s", True),
)


class Side:
    """rxe, or Verbena in one of its modes."""

    def __init__(self, name, machine, device, prefix=(), environment=None):
        self.name = name
        self.machine = machine
        self.device = device
        self.prefix = list(prefix)
        self.environment = environment or {}

    def run(self, line, column):
        program, *options = line.split()
        words = [program, "-d", self.device, "-x", GID, "-p", PORT, "-F", *options]
        words = [*self.prefix, *map(str, words)]
        start = self.machine.start
        server = start(["taskset", "-c", "0", *words], self.environment)
        client = None
        try:
            library.wait_for(
                lambda: self.machine.is_listening(PORT) or server.status() is not None, SECONDS)
            client = start(["taskset", "-c", "1", *words, self.machine.address], self.environment)
            library.wait_for(lambda: client.status() is not None, SECONDS)
            if client.status() != 0:
                raise library.Failure(f"{self.name}: {line}\n{client.output()}{server.output()}")
            library.wait_for(lambda: server.status() is not None, 10)
        finally:
            for each in filter(None, (server, client)):
                each.kill()
        rows = [row.split() for row in client.output().splitlines()]
        size = options[options.index("-s") + 1]
        found = [row for row in rows if row and row[0] == size and len(row) > column]
        if not found:
            raise library.Failure(f"{self.name}: {line} has no result\n{client.output()}")
        return float(found[-1][column])


def measure(machine, build, rounds):
    run = [str(build / "bin/verbena"), "run", "--"]
    only = {"VERBENA_DEVICES": "eth0"}
    sides = [
        Side("rxe", machine, "rxe0"),
        Side("wire", machine, "vrb_eth0", run, {**only, "VERBENA_PATH": "wire"}),
        Side("memory", machine, "vrb_eth0", run, only),
    ]
    medians = {}
    for side in sides:
        for line, column, *_ in MEASURED:
            taken = [side.run(line, column) for _ in range(rounds)]
            medians[side.name, line] = statistics.median(taken)
        print(f"measured: {side.name}", flush=True)
        if side.name == "rxe":
            free_port(machine)
    return medians


def free_port(machine):
    """rxe has UDP port 4791 as long as its module is there."""
    machine.call("rdma link delete rxe0")
    unload = "import ctypes, sys; sys.exit(ctypes.CDLL(None).delete_module(b'rdma_rxe', 0))"
    program = machine.start(["python3", "-c", unload])
    library.wait_for(lambda: program.status() is not None, 30)
    if program.status() != 0:
        raise library.Failure("rxe's module stays: " + program.output())


def show(medians):
    print(f"\n| {'program':37} | unit  |     rxe | Verbena, wire | to rxe | Verbena, memory |")
    print(f"|{'-' * 39}|-------|--------:|--------------:|-------:|----------------:|")
    for line, _, unit, is_more_better in MEASURED:
        rxe, wire, memory = (medians[name, line] for name in ("rxe", "wire", "memory"))
        ratio = wire / rxe if is_more_better else rxe / wire
        print(f"| `{line:35}` | {unit:5} | {rxe:7.3g} | {wire:13.3g} | {ratio:5.2f}x |"
              f" {memory:15.3g} |")
    print("\nto rxe: so many times as fast")


def work(options, folder):
    wire = lab.Wire(MTU)
    machine = guest.Guest(kernel.fetch(options.build / "interop/kernel"), folder, wire,
                          processors=2)
    try:
        machine.wait_for_boot()
        show(measure(machine, options.build.resolve(), options.rounds))
    finally:
        machine.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path, help="the build folder")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    options = parser.parse_args()
    try:
        if os.environ.get(lab.INSIDE) != "1":
            lab.require()
            kernel.fetch(options.build / "interop/kernel")
            lab.enter()
        with tempfile.TemporaryDirectory(prefix="verbena-beside-") as folder:
            work(options, pathlib.Path(folder))
    except (library.Failure, lab.Impossible, kernel.Unavailable, OSError) as problem:
        sys.exit(f"beside_rxe: {problem}")


if __name__ == "__main__":
    main()
