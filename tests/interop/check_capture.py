#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Recomputes every ICRC of RoCEv2 captures (the classic pcap format) and lists what is malformed.

    check_capture.py [--self-test] [--ours] FILE...

With --self-test it also damages the packets bit by bit: each damage must be found. With --ours both
ends are Verbena and may know it (docs/decisions/0012). It uses no code of the project, so that both
would have to be wrong in the same way.
"""

import argparse
import collections
import pathlib
import struct
import sys

sys.dont_write_bytecode = True
from roce_frames import Flows, Frame, Malformed, ones_complement_sum  # noqa: E402

ETHERNET = 1
SHOWN = 100  # bytes of a bad frame
PER_KIND = 2  # packets of each kind that the self-test damages
# Damage that nothing can tell from what a router or the sender may have written: the marks of
# congestion in the IP head (with its checksum), and those in the BTH.
BTH_MARKS = 0xC0


class Reader:
    """The frames of a file, as far as it has been written."""

    def __init__(self, path):
        self.file = open(path, "rb")
        head = self.file.read(24)
        order = {b"\xd4\xc3\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">", b"\x4d\x3c\xb2\xa1": "<"}
        if len(head) < 24 or head[:4] not in order:
            raise ValueError(f"{path}: not a pcap file")
        self.layout = order[head[:4]] + "4I"
        if struct.unpack(self.layout[0] + "I", head[20:])[0] != ETHERNET:
            raise ValueError(f"{path}: not a capture of Ethernet")

    def frames(self):
        while True:
            at = self.file.tell()
            head = self.file.read(16)
            data = self.file.read(struct.unpack(self.layout, head)[2]) if len(head) == 16 else b""
            if len(head) < 16 or len(data) < struct.unpack(self.layout, head)[2]:
                self.file.seek(at)
                return
            if struct.unpack(self.layout, head)[3] != len(data):
                raise ValueError("a frame was cut while it was recorded")
            yield data


class Checker:
    """Counts what it sees, and keeps what is wrong with it."""

    def __init__(self, among_ours=False):
        self.flows = Flows(among_ours)
        self.counts = collections.Counter()  # (source address, kind of packet)
        self.frames = self.others = 0
        self.problems = []

    def take(self, data):
        self.frames += 1
        if not Frame.is_roce(data):
            self.others += 1
            return
        try:
            frame = Frame(data)
            self.counts[frame.source, frame.name] += 1
            self.flows.follow(frame)
        except Malformed as problem:
            self.problems.append(f"frame {self.frames}: {problem}: {data[:SHOWN].hex()}")

    def kinds(self):
        total = collections.Counter()
        for (_, name), count in self.counts.items():
            total[name] += count
        return " ".join(f"{name}={total[name]}" for name in sorted(total))


def is_found(data):
    try:
        Frame(data)
    except Malformed:
        return True
    return not Frame.is_roce(data)


def undetectable(data, byte, bit):
    """Whether the specification lets a router change this bit without a trace."""
    if data[12:14] == b"\x86\xdd":
        start = 54
        # Traffic class, flow label and hop limit: no checksum covers them in IPv6.
        if 14 <= byte < 18 and not (byte == 14 and bit >= 4) or byte == 21:
            return True
    else:
        start = 14 + (data[14] & 15) * 4
    return byte < 12 or byte == start + 8 + 4 and 1 << bit & BTH_MARKS


def made_up(operation, rest):
    """A frame over IPv4 whose ICRC is right, for what no kernel's rxe sends yet."""
    udp = struct.pack(">4H", 50000, 4791, 8 + 12 + len(rest) + 4, 0)
    bth = struct.pack(">BBHII", operation, 0x40, 0xFFFF, 0x123456, 0x80000000 | 77)
    head = bytearray(struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp) + len(bth) + len(rest) + 4,
                                 0, 0x4000, 64, 17, 0) + bytes([10, 0, 0, 1, 10, 0, 0, 2]))
    head[10:12] = (0xFFFF - ones_complement_sum(bytes(head))).to_bytes(2, "big")
    packet = udp + bth + rest
    icrc = Frame.icrc(head, packet + bytes(4)).to_bytes(4, "little")
    return bytes(12) + b"\x08\x00" + bytes(head) + packet + icrc


def persistent():
    """FLUSH and ATOMIC WRITE: good ones, and bad ones whose ICRC is right all the same."""
    def reth(length, address=0x1000):
        return struct.pack(">QII", address, 5, length)

    def feth(kind):
        return struct.pack(">I", kind)

    good = [made_up(28, feth(kind) + reth(100)) for kind in (1, 2, 3, 0x11)]
    good += [made_up(28, feth(1) + reth(0)), made_up(29, reth(8) + bytes(range(8)))]
    bad = [made_up(28, feth(kind) + reth(100)) for kind in (0, 4, 0x21, 0x41, 1 << 31)]
    bad += [made_up(28, feth(1) + reth(4) + bytes(4)), made_up(28, feth(1)), made_up(28, reth(8)),
            made_up(29, reth(4) + bytes(4)), made_up(29, reth(16) + bytes(8)), made_up(29, reth(8)),
            made_up(29, reth(8, 0x1004) + bytes(8)), made_up(0x20 | 28, feth(1) + reth(8))]
    return good, bad


def self_test(frames):
    """Flips every bit of some packets of each kind; returns how many, and those not noticed."""
    seen = collections.Counter()
    flips, missed = 0, []
    for data in filter(Frame.is_roce, frames):
        kind = Frame(data).name, data[12:14]
        seen[kind] += 1
        if seen[kind] > PER_KIND:
            continue
        for byte in range(len(data)):
            for bit in range(8):
                if undetectable(data, byte, bit):
                    continue
                flips += 1
                damaged = bytearray(data)
                damaged[byte] ^= 1 << bit
                if not is_found(bytes(damaged)):
                    missed.append(f"{kind[0]}: bit {bit} of byte {byte} in {data.hex()}")
    return flips, missed


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    failed, everything = 0, []
    for path in options.files:
        checker = Checker(options.ours)
        frames = list(Reader(path).frames())
        for data in frames:
            checker.take(data)
        good = checker.counts and not checker.problems
        failed += not good
        everything += frames if good else []
        print(f"{'ok  ' if good else 'FAIL'} {path.name}: {checker.frames} frames"
              f" ({checker.others} others); {checker.kinds()}")
        print("".join(f"  {problem}\n" for problem in checker.problems), end="")
    passed = len(options.files) - failed
    if options.self_test:
        good, bad = persistent()
        wrong = [data.hex() for data in good if is_found(data)]
        wrong += [data.hex() for data in bad if not is_found(data)]
        print(f"{'FAIL' if wrong else 'ok  '} {len(good) + len(bad)} frames of FLUSH and"
              f" ATOMIC WRITE")
        print("".join(f"  judged wrongly: {what}\n" for what in wrong), end="")
        passed, failed = passed + (not wrong), failed + bool(wrong)
        flips, missed = self_test(everything + good)
        print(f"{'FAIL' if missed or not flips else 'ok  '} {flips} damaged packets")
        print("".join(f"  not noticed: {what}\n" for what in missed[:20]), end="")
        passed, failed = passed + (not missed), failed + bool(missed or not flips)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
