# SPDX-License-Identifier: MIT
"""Running unmodified programs against the library that was built, and telling how it went."""

import contextlib
import ctypes
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
# How the library carries operations between processes of one host; `auto` is what users get.
MODES = {
    "ring": {"VERBENA_PATH": "ring"},
    "never": {"VERBENA_ADOPT": "never"},
    "wire": {"VERBENA_PATH": "wire"},
    "auto": {"VERBENA_ADOPT": "auto"},
}
MODE_VARIABLES = ("VERBENA_PATH", "VERBENA_ADOPT")
LISTENING = "0A"  # the state in /proc/net/tcp
PORT_SPACES = {"tcp": 0x0106, "udp": 0x0111, "ib": 0x13F}  # of rdma_cm


def add_mode(parser, several=True):
    parser.add_argument(
        "--mode",
        choices=[*MODES, "all"] if several else [*MODES],
        help="ring: only the ring; never: no memory is adopted; wire: RoCEv2; auto: adopted"
        " (default: as the environment says)",
    )


def modes(wanted):
    """The modes that --mode asks for; None: what the environment says."""
    return list(MODES) if wanted == "all" else [wanted]


def environment(library_folder, mode=None):
    """The environment in which programs find our library, in one of the modes. The folder must
    hold it.
    """
    folder = pathlib.Path(library_folder).resolve()
    for name in ("libibverbs.so", "libibverbs.so.1"):
        if not (folder / name).exists():
            sys.exit(f"{folder} has no {name}: build the target ibverbs_so first")
    variables = dict(os.environ)
    variables["LD_LIBRARY_PATH"] = str(folder)
    variables.pop("LD_PRELOAD", None)
    if mode:
        for name in MODE_VARIABLES:
            variables.pop(name, None)
        variables.update(MODES[mode])
    return variables


def in_own_network():
    """What runs a program with a loopback interface and nothing else; empty where the system does
    not let us.
    """
    script = 'ip link set lo up && exec "$0" "$@"'
    for options in (["--net"], ["--user", "--map-root-user", "--net"]):
        command = ["unshare", *options, "sh", "-c", script]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    return []


def devices(variables):
    """The names of the devices, as ibv_devices prints them."""
    output = subprocess.run(
        ["ibv_devices"], env=variables, capture_output=True, text=True, timeout=30, check=True
    ).stdout
    return [line.split()[0] for line in output.splitlines()[2:] if line.split()]


GIVEN_PORTS = set()


def free_port():
    """A TCP port that nobody listens on, another one each time: programs take it a moment later."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port not in GIVEN_PORTS:
            GIVEN_PORTS.add(port)
            return port


def free_service(space):
    """A port of rdma_cm that no process of ours has. Not one that programs get who want any."""
    with open("/proc/net/unix", encoding="ascii", errors="replace") as lines:
        taken = lines.read()
    while True:
        port = random.randrange(20_000, 32_768)
        if f"@verbena/port/{PORT_SPACES[space] << 16 | port:016x}/" not in taken:
            return port


def is_listening(port):
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if len(fields) > 3 and fields[3] == LISTENING:
                    if int(fields[1].rsplit(":", 1)[1], 16) == port:
                        return True
    return False


def is_bound(port):
    """Whether a socket of UDP has the port."""
    for table in ("/proc/net/udp", "/proc/net/udp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            if any(f":{port:04X} " in line for line in lines):
                return True
    return False


def is_listened_to(port):
    """Whether an ordinary socket of TCP listens at the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def is_served(space, port):
    """Whether a process of ours listens for rdma_cm there: `tcp`, `udp` or `ib`."""
    service = f"@verbena/port/{PORT_SPACES[space] << 16 | port:016x}/"
    with open("/proc/net/unix", encoding="ascii", errors="replace") as lines:
        return any(re.search(re.escape(service) + r"\w+/\d+$", line) for line in lines)


def die_with_parent():
    """Whatever ends the test takes its programs along."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Program:
    """A program that runs, with its output in a file."""

    def __init__(self, arguments, variables):
        self.arguments = arguments
        self.file = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            arguments,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=self.file,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )

    def output(self):
        self.file.seek(0)
        return self.file.read().decode(errors="replace")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def wait_for(condition, seconds, pause=0.005):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


class Failure(Exception):
    pass


def run_pair(command, variables, seconds):
    """Runs `command` as a server, then as its client. `{port}` in it becomes a free TCP port.

    Returns what the client and the server printed; raises Failure when one of them fails, hangs or
    is killed.
    """
    port = free_port()
    command = [word.format(port=port) for word in command]
    server = Program(command, variables)
    client = None
    try:
        ready = wait_for(lambda: is_listening(port) or server.process.poll() is not None, seconds)
        if not ready or server.process.poll() is not None:
            raise Failure("the server does not listen\n" + server.output())
        client = Program([*command, "127.0.0.1"], variables)
        both = (client, server)
        done = wait_for(lambda: all(one.process.poll() is not None for one in both), seconds)
        problems = [
            f"{role}: " + ("still running" if status is None else f"exit status {status}")
            for role, status in (
                ("client", client.process.poll()),
                ("server", server.process.poll()),
            )
            if status != 0
        ]
        if not done or problems:
            raise Failure("\n".join([f"after {seconds} s", *problems, told(client, server)]))
        return client.output(), server.output()
    finally:
        for program in (server, client):
            if program:
                program.kill()


def knows_no_time(output):
    """Whether perftest says that it did not find the rate of the processor's clock, for which it
    fits a line through a few readings: on a busy machine they do not lie on one. Its transfers are
    as good, but its speeds are 0, infinite or not a number.
    """
    return re.search(r"^Correlation coefficient r\^2: \S+ < ", output, re.MULTILINE) is not None


def told(client, server):
    return f"-- client:\n{client.output()}\n-- server:\n{server.output()}"


def add_sample(parser):
    parser.add_argument(
        "--sample",
        metavar="N",
        type=int,
        default=1,
        help="run only every Nth case, other ones with the ring than without"
        " (VERBENA_TEST_MODE=long: all the same)",
    )


class Report:
    """Prints a line a case and the closing line that ctest's summary reads."""

    def __init__(self, only=None, sample=1):
        self.only = re.compile(only) if only else None
        self.sample = 1 if os.environ.get("VERBENA_TEST_MODE") == "long" else sample
        self.first = {"ring": 0, "wire": 2}.get(os.environ.get("VERBENA_PATH"), 1)
        self.seen = 0
        self.left_out = []
        self.passed = 0
        self.failed = []
        self.skipped = 0

    def wants(self, name):
        return self.only is None or self.only.search(name)

    def skip(self, name, why):
        self.skipped += 1
        print(f"SKIP {name}: {why}", flush=True)

    def case(self, name, body):
        if not self.wants(name):
            return
        self.seen += 1
        if (self.seen - self.first) % self.sample != 0:
            self.left_out.append(name)
            return
        start = time.monotonic()
        try:
            note = body() or ""
            self.passed += 1
            print(f"ok   {name} ({time.monotonic() - start:.1f} s) {note}".rstrip(), flush=True)
        except (Failure, subprocess.SubprocessError, OSError) as problem:
            self.failed.append(name)
            print(f"FAIL {name} ({time.monotonic() - start:.1f} s)\n{problem}", flush=True)

    def close(self):
        if self.left_out:
            text = f"{len(self.left_out)} of {self.seen} cases are left to the mode of users"
            self.skip("a sample", f"{text} and to VERBENA_TEST_MODE=long")
            print("left out: " + ", ".join(self.left_out))
        if self.failed:
            print("failed: " + ", ".join(self.failed))
        print(f"{self.passed} passed, {len(self.failed)} failed, {self.skipped} skipped")
        if self.passed + len(self.failed) == 0:
            return SKIPPED if self.skipped else 1
        return 1 if self.failed else 0
