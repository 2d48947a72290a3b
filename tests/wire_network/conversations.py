# SPDX-License-Identifier: MIT
"""Programs of one host that answer each other by the wire, as others see them."""

import pathlib
import sys
import tempfile
import threading
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "conformance"))
import library  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "interop"))
import lab  # noqa: E402
from check_capture import Checker, Reader  # noqa: E402

SECONDS = 60
LONG = 50_000  # messages, of each side
ROCE_PORT = 4791
GIDS = {"0": "IPv4", "1": "IPv6"}


def conversation(variables, gid):
    """What goes over `lo` when two programs answer each other, seen by others: each ICRC is right.

    A connected socket sends most of it, whose IPv4 identifications the kernel counts.
    """
    count = 1000
    words = ["ib_send_lat", "-F", "-d", "vrb_lo", "-x", gid, "-s", "9", "-n", str(count)]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "lo.pcap"
        recording = lab.Recording(types.SimpleNamespace(interface="lo"), path)
        try:
            library.run_pair([*words, "-p", "{port}"], variables, SECONDS)
            time.sleep(recording.delay)
        finally:
            missed = recording.stop()
        frames = list(Reader(path).frames())
    checker = Checker(among_ours=True)
    counted = 0
    for frame in frames:
        frame = bytearray(frame)
        if frame[12:14] == b"\x08\x00":
            frame[40:42] = bytes(2)  # UDP's checksum, which the kernel leaves to hardware
            counted += frame[18:20] != bytes(2)
        else:
            frame[60:62] = bytes(2)
        checker.take(bytes(frame))
    if checker.problems:
        raise library.Failure(f"{len(checker.problems)} bad frames\n" + checker.problems[0])
    if len(frames) + missed < 2 * count:
        raise library.Failure(f"{len(frames)} frames, and {missed} missed")
    if GIDS[gid] == "IPv4" and counted + missed < count:
        raise library.Failure(f"only {counted} of {len(frames)} frames have identifications")
    return f"{len(frames)} frames, {counted} with identifications, {missed} missed"


def connected_receivers():
    """Sockets of this network at the UDP port that take one peer's packets."""
    found = set()
    for name in ("udp", "udp6"):
        path = pathlib.Path("/proc/net", name)
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            here, there = line.split()[1:3]
            if int(here.rpartition(":")[2], 16) == ROCE_PORT and int(there.rpartition(":")[2], 16):
                found.add((here, there))
    return found


def own_sockets(variables, gid):
    """Both programs of a long conversation get a socket for it, and leave none behind."""
    words = ["ib_send_lat", "-F", "-d", "vrb_lo", "-x", gid, "-s", "9", "-n", str(LONG)]
    seen = []
    is_over = threading.Event()

    def look():
        while not is_over.wait(0.01):
            seen.append(len(connected_receivers()))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        library.run_pair([*words, "-p", "{port}"], variables, SECONDS)
    finally:
        is_over.set()
        watcher.join()
    if max(seen) != 2:
        raise library.Failure(f"at most {max(seen)} sockets were seen in {len(seen)} looks")
    left = connected_receivers()
    if left:
        raise library.Failure(f"left behind: {left}")
    return f"{seen.count(2)} of {len(seen)} looks saw two"


def run_all(report, variables):
    for gid, family in GIDS.items():
        report.case(f"a conversation over {family}", lambda g=gid: conversation(variables, g))
        report.case(
            f"a conversation has its own sockets, {family}", lambda g=gid: own_sockets(variables, g)
        )
