# SPDX-License-Identifier: MIT
"""A virtual machine whose kernel's rxe is the peer: QEMU without acceleration, so that any machine
can do it. It sees the host's root filesystem read only and runs programs from there unmodified; see
guest_agent.py for the other side of the channel.
"""

import itertools
import json
import os
import queue
import select
import socket
import subprocess
import threading
import time

from lab import library

QEMU = "qemu-system-x86_64"
BOOT_SECONDS = 300
ANSWER_SECONDS = 60
# Frames as a plain card would send them: none larger than the MTU, checksums complete.
OFFLOADS = (
    "csum guest_csum gso guest_tso4 guest_tso6 guest_ufo guest_ecn host_tso4 host_tso6 host_ufo"
    " host_ecn"
).split()


class Guest:
    name = "rxe"
    device = "rxe0"

    def __init__(self, kernel, folder, wire, processors=1):
        self.address = wire.guest_address
        self.ipv6_address = wire.guest_addresses[1].split("/")[0]
        self.folder = folder
        self.socket_path = str(folder / "channel")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.socket_path)
        self.listener.listen(1)
        self.programs = {}
        self.numbers = itertools.count()
        self.answers = queue.Queue()
        self.asking = threading.Lock()
        self.sending = threading.Lock()
        self.boot_seconds = 0
        self.process = self.start_machine(kernel, wire, processors)
        self.channel = None

    def start_machine(self, kernel, wire, processors):
        append = ["console=ttyS0", "panic=-1", "nokaslr", "mitigations=off", "no_timer_check"]
        append += ["tsc=reliable", "random.trust_cpu=on", "quiet", "loglevel=4", "audit=0"]
        append += ["apparmor=0", "nowatchdog", "net.ifnames=0", f"interop.mtu={wire.mtu}"]
        append += [f"interop.addresses={','.join(wire.guest_addresses)}"]
        card = ",".join(["virtio-net-pci,netdev=n0,romfile=", *(f"{o}=off" for o in OFFLOADS)])
        words = [QEMU, "-machine", "q35,hpet=off,usb=off,vmport=off", "-m", "512"]
        # With one possible CPU, QEMU before 8.1 leaves memory barriers out of the code that it
        # makes, and virtio loses notifications.
        words += ["-smp", f"{processors},maxcpus=2", "-accel", "tcg,thread=multi,tb-size=256"]
        words += ["-cpu", "max,la57=off", "-nodefaults", "-no-user-config", "-no-reboot"]
        words += ["-display", "none", "-kernel", kernel.image, "-initrd", kernel.initramfs]
        words += ["-append", " ".join(append), "-serial", f"file:{self.folder}/console.log"]
        words += ["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=channel"]
        words += ["-chardev", f"socket,id=channel,path={self.socket_path}"]
        words += ["-netdev", f"tap,id=n0,ifname={wire.interface},script=no,downscript=no"]
        words += ["-device", f"{card},mac={wire.guest_mac}"]
        words += ["-virtfs", "local,path=/,mount_tag=hostroot,security_model=none,readonly=on"
                  ",multidevs=remap"]
        with open(self.folder / "qemu.log", "wb") as log:
            return subprocess.Popen(
                list(map(str, words)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=library.die_with_parent,
            )

    def wait_for_boot(self):
        start = time.monotonic()
        self.listener.settimeout(BOOT_SECONDS)
        readable, _, _ = select.select([self.listener], [], [], BOOT_SECONDS)
        if not readable:
            raise library.Failure("the guest does not start" + self.told())
        self.channel, _ = self.listener.accept()
        threading.Thread(target=self.listen, daemon=True).start()
        while True:
            try:
                message = self.answers.get(timeout=0.1)
            except queue.Empty:
                if self.process.poll() is not None or time.monotonic() - start > BOOT_SECONDS:
                    raise library.Failure("the guest did not come up" + self.told()) from None
                continue
            if "failed" in message:
                raise library.Failure(f"the guest: {message['failed']}" + self.told())
            self.boot_seconds = time.monotonic() - start
            return

    def told(self):
        """What the machine said, for whoever has to find out."""
        parts = []
        for name in ("qemu.log", "console.log"):
            path = self.folder / name
            text = path.read_text(errors="replace")[-3000:] if path.exists() else ""
            parts.append(f"\n-- {name}:\n{text}")
        return "".join(parts)

    def listen(self):
        rest = b""
        while data := self.channel.recv(1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for message in map(json.loads, lines):
                program = self.programs.get(message.get("id"))
                if program:
                    program.take(message)
                else:
                    self.answers.put(message)

    def send(self, **message):
        with self.sending:
            self.channel.sendall(json.dumps(message).encode() + b"\n")

    def ask(self, **message):
        try:
            with self.asking:
                self.send(**message)
                return self.answers.get(timeout=ANSWER_SECONDS)["answer"]
        except queue.Empty:
            raise library.Failure(f"the guest does not answer {message}" + self.told()) from None

    def start(self, words, environment=None):
        return GuestProgram(self, words, environment or {})

    def is_listening(self, port):
        return self.ask(listening=port)

    def serves(self, space, port):
        return self.ask(serving=[space, port])

    def is_bound(self, port):
        return self.ask(bound=port)

    def call(self, line):
        """Runs a command that must succeed."""
        program = self.start(line.split())
        library.wait_for(lambda: program.status() is not None, ANSWER_SECONDS)
        if program.status() != 0:
            program.kill()
            raise library.Failure(f"the guest: {line}: {program.output()}")

    def set_mtu(self, mtu):
        self.call(f"ip link set eth0 mtu {mtu}")

    def lose(self, one_in):
        """Of RoCEv2 over IPv4, one packet in so many is lost, in each direction."""
        self.call("tc qdisc add dev eth0 clsact")
        match = "protocol ip u32 match ip dport 4791 0xffff"
        for direction in ("ingress", "egress"):
            self.call(f"tc filter add dev eth0 {direction} {match} action ok random netrand drop"
                      f" {one_in}")

    def lose_nothing(self):
        self.call("tc qdisc del dev eth0 clsact")

    def stop(self):
        if self.channel and self.process.poll() is None:
            self.send(off=True)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                pass
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.listener.close()


class GuestProgram:
    """A program that runs in the guest; seen as lab.HostProgram is."""

    def __init__(self, guest, words, environment):
        self.guest = guest
        self.texts = []
        self.ended = None
        self.number = next(guest.numbers)
        guest.programs[self.number] = self
        guest.send(start=self.number, words=words, folder=os.getcwd(), environment=environment)

    def take(self, message):
        if "output" in message:
            self.texts.append(message["output"])
        else:
            self.ended = message["status"]

    def status(self):
        if self.ended is None and self.guest.process.poll() is not None:
            raise library.Failure("the guest has ended" + self.guest.told())
        return self.ended

    def output(self):
        return "".join(self.texts)

    def kill(self):
        if self.ended is None:
            self.guest.send(kill=self.number)
            library.wait_for(lambda: self.ended is not None, 10)
