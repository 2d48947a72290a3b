# SPDX-License-Identifier: MIT
"""RoCEv2 frames, read from the specification alone and without any of the project's code: what the
project sends is held against this.

InfiniBand Architecture volume 1, chapter 9 (transport headers), annexes A17 (RoCEv2, the ICRC) and
A19 (FLUSH and ATOMIC WRITE).
"""

import collections
import struct
import zlib

UDP_PORT = 4791
RC, UC, UD, XRC = 0x00, 0x20, 0x60, 0xA0
CNP = 0x81
MTUS = (256, 512, 1024, 2048, 4096)

# Table 38 of 9.2.1: the operation in the low five bits, with the headers that follow the BTH.
OPERATIONS = {
    0: ("SEND_FIRST", ""),
    1: ("SEND_MIDDLE", ""),
    2: ("SEND_LAST", ""),
    3: ("SEND_LAST_IMM", "i"),
    4: ("SEND_ONLY", ""),
    5: ("SEND_ONLY_IMM", "i"),
    6: ("WRITE_FIRST", "r"),
    7: ("WRITE_MIDDLE", ""),
    8: ("WRITE_LAST", ""),
    9: ("WRITE_LAST_IMM", "i"),
    10: ("WRITE_ONLY", "r"),
    11: ("WRITE_ONLY_IMM", "ri"),
    12: ("READ_REQUEST", "r"),
    13: ("READ_RESPONSE_FIRST", "a"),
    14: ("READ_RESPONSE_MIDDLE", ""),
    15: ("READ_RESPONSE_LAST", "a"),
    16: ("READ_RESPONSE_ONLY", "a"),
    17: ("ACKNOWLEDGE", "a"),
    18: ("ATOMIC_ACKNOWLEDGE", "av"),
    19: ("COMPARE_SWAP", "t"),
    20: ("FETCH_ADD", "t"),
    22: ("SEND_LAST_INVALIDATE", "k"),
    23: ("SEND_ONLY_INVALIDATE", "k"),
    28: ("FLUSH", "fr"),
    29: ("ATOMIC_WRITE", "r"),
}
SIZES = {"r": 16, "a": 4, "v": 8, "t": 28, "i": 4, "k": 4, "d": 8, "x": 4, "f": 4}
WITHOUT_PAYLOAD = {12, 17, 18, 19, 20, 28}
KINDS = {RC: set(OPERATIONS), UC: set(range(12)), UD: {4, 5}, XRC: set(OPERATIONS)}
NAK_CODES = range(5)
# What one of ours may ask in the reserved bits beside AckReq, in so many packets of a connection
# with a stranger: docs/decisions/0012-agreeing-in-reserved-bits.md.
MARKS = {0x35: "a request", 0x4A: "a response"}
MARKED_MOST = 4
# Two of ours mark everything, and a NAK with this names a gap.
GAP_MARK = 0x4D
# And a SEND with this has an ACK behind its payload: a zero, the PSN, the AETH (decision 30).
PIGGYBACK_MARK = 0x39
AGREED_MARKS = (GAP_MARK, PIGGYBACK_MARK)


class Malformed(Exception):
    pass


def demand(holds, what):
    if not holds:
        raise Malformed(what)


def ones_complement_sum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


class Frame:
    """An Ethernet frame with a RoCEv2 packet, taken apart. Raises Malformed."""

    def __init__(self, data):
        self.datagram(*self.network(data))
        self.bth()
        self.extensions()

    @staticmethod
    def is_roce(data):
        """Whether it goes to port 4791, as far as one can see."""
        kind, rest = data[12:14], data[14:]
        if kind == b"\x08\x00" and rest[9:10] == b"\x11":
            start = (rest[0] & 15) * 4
        elif kind == b"\x86\xdd" and rest[6:7] == b"\x11":
            start = 40
        else:
            return False
        return rest[start + 2 : start + 4] == UDP_PORT.to_bytes(2, "big")

    def network(self, data):
        """The IP head and what is behind it, without the padding of short frames."""
        if data[12:14] == b"\x08\x00":
            demand(data[14] >> 4 == 4, "the IP version is not 4")
            head_size, total = (data[14] & 15) * 4, int.from_bytes(data[16:18], "big")
            demand(head_size >= 20 and total + 14 <= len(data), "the IP length is too large")
            head = data[14 : 14 + head_size]
            demand(ones_complement_sum(head) == 0xFFFF, "the IP checksum is wrong")
            fragment = int.from_bytes(head[6:8], "big")
            demand(fragment & 0xBFFF == 0, "the IP datagram is a fragment")
            self.source, self.destination = head[12:16], head[16:20]
        else:
            demand(data[14] >> 4 == 6, "the IP version is not 6")
            head_size, total = 40, 40 + int.from_bytes(data[18:20], "big")
            demand(total + 14 <= len(data), "the IP length is too large")
            head = data[14:54]
            self.source, self.destination = head[8:24], head[24:40]
        self.ecn = (head[1] if head_size != 40 or data[12:14] == b"\x08\x00" else head[1] >> 4) & 3
        return head, data[14 + head_size : 14 + total]

    def datagram(self, head, udp):
        demand(len(udp) >= 8 + 12 + 4, "shorter than UDP head, BTH and ICRC")
        self.source_port, _, length, checksum = struct.unpack(">4H", udp[:8])
        demand(length == len(udp), "the UDP length is not that of the IP payload")
        if checksum:
            pseudo = self.source + self.destination + struct.pack(">2H", 17, length)
            demand(ones_complement_sum(pseudo + udp) == 0xFFFF, "the UDP checksum is wrong")
        self.icrc_is_right = self.icrc(head, udp) == int.from_bytes(udp[-4:], "little")
        demand(self.icrc_is_right, "the ICRC is wrong")
        self.packet = udp[8:-4]

    @staticmethod
    def icrc(head, udp):
        """A17.3.3: fields that routers may change count as ones, after eight bytes of ones."""
        head = bytearray(head)
        if head[0] >> 4 == 4:
            head[1] = head[8] = head[10] = head[11] = 0xFF  # type of service, TTL, checksum
        else:
            head[0] |= 0x0F  # traffic class and flow label, hop limit
            head[1] = head[2] = head[3] = head[7] = 0xFF
        masked = bytes(head) + udp[:6] + b"\xff\xff" + udp[8:12] + b"\xff"
        return zlib.crc32(udp[13:-4], zlib.crc32(b"\xff" * 8 + masked))

    def bth(self):
        opcode, flags, pkey, queue, sequence = struct.unpack(">BBHII", self.packet[:12])
        self.transport, self.operation = opcode & 0xE0, opcode & 0x1F
        demand(opcode == CNP or self.operation in KINDS.get(self.transport, ()),
               f"no such opcode: {opcode:#x}")
        demand(flags & 15 == 0, "the header version is not 0")
        demand(pkey & 0x7FFF, "the P_Key is not a valid one")
        demand(queue >> 24 & 0x3F == 0, "reserved bits beside FECN and BECN are set")
        self.mark = sequence >> 24 & 0x7F
        demand(self.mark == 0 or self.mark in MARKS or self.mark in AGREED_MARKS,
               "reserved bits beside AckReq are set")
        self.opcode = opcode
        self.pad = flags >> 4 & 3
        self.queue, self.psn = queue & 0xFFFFFF, sequence & 0xFFFFFF
        self.wants_answer = bool(sequence >> 31)

    def extensions(self):
        if self.opcode == CNP:
            self.name, kinds, self.payload = "CNP", "", b""
            demand(len(self.packet) == 12 + 16 and not any(self.packet[12:]), "a CNP is 16 zeros")
            return
        self.name, kinds = OPERATIONS[self.operation]
        self.name = {RC: "RC_", UC: "UC_", UD: "UD_", XRC: "XRC_"}[self.transport] + self.name
        if self.transport == UD:
            kinds = "d" + kinds
        elif self.transport == XRC and self.operation not in range(13, 19):
            kinds = "x" + kinds
        at = 12
        self.heads = {}
        for kind in kinds:
            self.heads[kind] = self.packet[at : at + SIZES[kind]]
            at += SIZES[kind]
        demand(len(self.packet) >= at + self.pad, f"{self.name}: shorter than its headers")
        demand(len(self.packet) % 4 == 0, f"{self.name}: not a multiple of four bytes")
        self.payload = self.packet[at : len(self.packet) - self.pad]
        demand(not any(self.packet[len(self.packet) - self.pad :]) or not self.pad,
               f"{self.name}: bytes of the pad are not zero")
        self.check_payload()
        self.check_answer()
        self.check_persistence()

    def check_payload(self):
        size = len(self.payload)
        if self.operation in WITHOUT_PAYLOAD:
            demand(size == 0 and self.pad == 0, f"{self.name}: has a payload")
        elif self.name.endswith(("_FIRST", "_MIDDLE")):
            demand(size in MTUS, f"{self.name}: {size} bytes are no path MTU")
        elif self.is_empty_end():
            self.name += ":EMPTY"
        elif "_LAST" in self.name:
            demand(1 <= size <= MTUS[-1], f"{self.name}: {size} bytes")
        else:
            demand(size <= MTUS[-1], f"{self.name}: {size} bytes")

    def is_empty_end(self):
        """What rxe answers a READ of nothing with that comes again. Nobody else may."""
        return self.operation == 15 and not self.payload and self.pad == 0

    def check_answer(self):
        if "a" not in self.heads:
            return
        syndrome = self.heads["a"][0]
        self.answer = {0: "", 1: "RNR", 3: "NAK"}.get(syndrome >> 5)
        demand(self.answer is not None, f"{self.name}: reserved syndrome {syndrome:#x}")
        demand(self.answer != "NAK" or syndrome & 31 in NAK_CODES,
               f"{self.name}: reserved NAK code {syndrome & 31}")
        demand(not self.answer or self.operation == 17, f"{self.name}: refuses")
        if self.answer:
            self.name += f":{self.answer}" + (f"_{syndrome & 31}" if self.answer == "NAK" else "")

    def check_persistence(self):
        if "f" in self.heads:
            kind = int.from_bytes(self.heads["f"], "big")
            demand(kind >> 6 == 0, "FLUSH: reserved bits of the FETH are set")
            demand(kind & 15 in (1, 2, 3), f"FLUSH: placement {kind & 15}")
            demand(kind >> 4 in (0, 1), f"FLUSH: selectivity {kind >> 4}")
        elif self.operation == 29:
            demand(len(self.payload) == 8 == self.length(), "ATOMIC_WRITE: not eight bytes")
            demand(self.heads["r"][7] & 7 == 0, "ATOMIC_WRITE: not aligned to eight bytes")

    def length(self):
        """What the RETH announces; None where there is none."""
        return int.from_bytes(self.heads["r"][12:], "big") if "r" in self.heads else None


class Message:
    """A message of several packets that is on its way to a queue pair."""

    def __init__(self, first):
        self.kind = first.name.split("_FIRST")[0]
        self.mtu = len(first.payload)
        self.psn = first.psn
        self.size = self.mtu
        self.announced = first.length()


class Flows:
    """What one frame alone does not show: the packets of a message belong together.

    A packet whose PSN does not follow begins a resend, of which only the next message is looked at.
    """

    def __init__(self, among_ours=False):
        self.open = {}
        self.among_ours = among_ours
        self.marked = collections.Counter()

    def follow(self, frame):
        if frame.mark:
            self.marked[frame.source, frame.queue] += 1
            few = self.marked[frame.source, frame.queue] <= MARKED_MOST
            demand(self.among_ours or few and frame.mark not in AGREED_MARKS,
                   f"{frame.name}: reserved bits beside AckReq are still set")
            demand(frame.mark != GAP_MARK or frame.name.endswith("NAK_0"),
                   f"{frame.name}: names a gap")
            along = frame.payload[-8:]
            demand(frame.mark != PIGGYBACK_MARK or
                   frame.name.startswith(("RC_SEND_ONLY", "XRC_SEND_ONLY")) and
                   len(along) == 8 and along[0] == 0 and along[4] >> 5 == 0,
                   f"{frame.name}: takes no ACK along")
        demand(not (self.among_ours and frame.is_empty_end()), f"{frame.name}: no READ ends so")
        key = (frame.source, frame.destination, frame.queue, frame.operation in range(13, 17))
        if frame.name.endswith("_ONLY") or "_ONLY_" in frame.name:
            self.open.pop(key, None)
            announced = frame.length()
            demand(announced in (None, len(frame.payload)),
                   f"{frame.name}: {len(frame.payload)} bytes, announced {announced}")
        elif frame.name.endswith("_FIRST"):
            self.open[key] = Message(frame)
        elif "_MIDDLE" in frame.name or "_LAST" in frame.name:
            self.proceed(key, frame)

    def proceed(self, key, frame):
        message = self.open.get(key)
        if message is None or frame.psn != message.psn + 1 & 0xFFFFFF:
            self.open.pop(key, None)
            return
        demand(frame.name.startswith(message.kind),
               f"{frame.name} in a message that began as {message.kind}_FIRST")
        message.psn = frame.psn
        message.size += len(frame.payload)
        if "_MIDDLE" in frame.name:
            demand(len(frame.payload) == message.mtu,
                   f"{frame.name}: {len(frame.payload)} bytes after {message.mtu}")
            return
        del self.open[key]
        demand(len(frame.payload) <= message.mtu,
               f"{frame.name}: {len(frame.payload)} bytes, path MTU {message.mtu}")
        demand(message.announced in (None, message.size),
               f"{frame.name}: the message has {message.size} bytes, announced were"
               f" {message.announced}")
