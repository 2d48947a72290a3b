# SPDX-License-Identifier: MIT
"""The place of the test: a network namespace with one wire that ends in the guest, and a capture of
it. The namespace has no name and belongs to the test's process: it goes with it, whatever happens.
"""

import os
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "conformance"))
import library  # noqa: E402

INSIDE = "VERBENA_INTEROP_INSIDE"
TUN = "/dev/net/tun"
BUFFER_MIB = 64


class Impossible(Exception):
    """This machine does not allow it; the text says what would be needed."""


def unshare():
    """The words that start a program in a network namespace of its own."""
    users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *users, "--net"]


def require():
    """Raises Impossible where the machine does not let us have a namespace and a tap."""
    script = f"ip tuntap add wire0 mode tap && test -w {TUN}"
    tried = subprocess.run(
        [*unshare(), "sh", "-c", script], capture_output=True, text=True, check=False
    )
    if tried.returncode == 0:
        return
    raise Impossible(
        f"needs a network namespace with a tap device: root with CAP_SYS_ADMIN and CAP_NET_ADMIN,"
        f" or user namespaces for ordinary users, and {TUN} (in a container:"
        f" --device={TUN}); seen here: {tried.stderr.strip() or 'no more than a failure'}"
    )


def enter():
    """Starts the test anew inside the namespace; returns there."""
    if os.environ.get(INSIDE) != "1":
        os.environ[INSIDE] = "1"
        words = unshare()
        os.execvp(words[0], [*words, sys.executable, *sys.argv])


def ip(*words):
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise library.Failure(f"ip {' '.join(map(str, words))}: {done.stderr}")


class Wire:
    """A tap: this end is ours, the other one the guest's card."""

    interface = "wire0"
    mac, guest_mac = "52:54:00:6f:00:01", "52:54:00:6f:00:02"
    address, guest_address = "10.91.0.1", "10.91.0.2"
    addresses = (f"{address}/24", "fd00:91::1/64")
    guest_addresses = (f"{guest_address}/24", "fd00:91::2/64")

    def __init__(self, mtu):
        self.mtu = mtu
        ip("link", "set", "lo", "up")
        ip("tuntap", "add", self.interface, "mode", "tap")
        for setting in ("accept_dad", "dad_transmits", "accept_ra", "router_solicitations"):
            path = f"/proc/sys/net/ipv6/conf/{self.interface}/{setting}"
            pathlib.Path(path).write_text("0", encoding="ascii")
        ip("link", "set", self.interface, "address", self.mac, "mtu", mtu, "up")
        for address in self.addresses:
            ip("address", "add", address, "dev", self.interface)

    def set_mtu(self, mtu):
        ip("link", "set", self.interface, "mtu", mtu)


class Recording:
    """A recording of the wire, from now on."""

    def __init__(self, wire, path):
        self.path = path
        path.unlink(missing_ok=True)
        # tcpdump writes each packet at once, but insists on changing its user, which it must not
        # where an ordinary user is root of a namespace only. dumpcap writes now and then.
        is_root = pathlib.Path("/proc/self/setgroups").read_text(encoding="ascii") == "allow\n"
        self.delay = 0.1 if is_root else 0.9
        words = ["tcpdump", "-U", "--immediate-mode", "-n", "-B", BUFFER_MIB * 1024, "-Z", "root"]
        if not is_root:
            words = ["dumpcap", "-P", "-q", "-B", BUFFER_MIB]
        words += ["-i", wire.interface, "-s", 65535, "-w", path]
        words += ["udp port 4791"] if is_root else ["-f", "udp port 4791"]
        self.log = open(f"{path}.log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log, preexec_fn=library.die_with_parent,
        )
        begun = library.wait_for(lambda: path.exists() and path.stat().st_size > 0, 20)
        if not begun:
            raise library.Failure("nothing is recorded: " + self.said())

    def said(self):
        return pathlib.Path(self.log.name).read_text(encoding="utf-8")

    def stop(self):
        """Ends it, and returns how many frames it missed."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        found = re.search(r"(\d+) packets? dropped by kernel|received/dropped.*: \d+/(\d+)",
                          self.said())
        if not found:
            raise library.Failure("the recording ended early: " + self.said())
        return int(found.group(1) or found.group(2))


class Ours:
    """Our side: unmodified programs under `verbena run`, made to use the wire."""

    name = "verbena"

    def __init__(self, build, wire):
        self.address = wire.address
        self.ipv6_address = wire.addresses[1].split("/")[0]
        self.device = f"vrb_{wire.interface}"
        self.program = str(pathlib.Path(build).resolve() / "bin/verbena")
        self.variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("VERBENA_", "LD_"))
        }
        self.variables.update(VERBENA_PATH="wire", VERBENA_DEVICES=wire.interface)

    def start(self, words):
        return HostProgram([self.program, "run", "--", *words], self.variables)

    @staticmethod
    def is_listening(port):
        return library.is_listening(port)

    @staticmethod
    def is_bound(port):
        return library.is_bound(port)

    @staticmethod
    def serves(space, port):
        return library.is_served(space, port)


class HostProgram(library.Program):
    def status(self):
        return self.process.poll()
