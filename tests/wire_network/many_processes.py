# SPDX-License-Identifier: MIT
"""Many processes of one host that share the UDP port."""

import contextlib
import pathlib
import random
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "conformance"))
import library  # noqa: E402

SECONDS = 60
PROCESSES = 40


class Pair:
    """A server and its client on `lo`, by the wire."""

    def __init__(self, variables, iterations):
        self.port = library.free_port()
        self.variables = variables
        self.words = ["ibv_rc_pingpong", "-c", "-g", "0", "-d", "vrb_lo", "-p", str(self.port)]
        self.words += ["-s", "20001", "-n", str(iterations)]
        self.server = library.Program(self.words, variables)
        self.client = None

    def connect(self):
        if not library.wait_for(lambda: library.is_listening(self.port), SECONDS):
            raise library.Failure("the server does not listen\n" + self.server.output())
        self.client = library.Program([*self.words, "127.0.0.1"], self.variables)

    def both(self):
        return [one for one in (self.client, self.server) if one]

    def is_done(self):
        return all(one.process.poll() is not None for one in self.both())

    def check(self):
        for one in self.both():
            if one.process.poll() != 0 or "iters in" not in one.output():
                raise library.Failure(f"{one.process.poll()}\n{one.output()}")

    def kill(self, how=signal.SIGKILL):
        for one in self.both():
            with contextlib.suppress(ProcessLookupError):
                one.process.send_signal(how)
            one.process.wait()


def forty_processes(variables, is_deadly):
    """They share the port; with `is_deadly`, a third is killed while the others go on."""
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    pairs = [Pair(variables, 300) for _ in range(PROCESSES // 2)]
    try:
        for pair in pairs:
            pair.connect()
        if is_deadly:
            victims = dice.sample(pairs, len(pairs) // 3)
            for victim in victims:
                time.sleep(dice.uniform(0, 0.3))
                victim.kill()
                pairs.append(Pair(variables, 300))
                pairs[-1].connect()
            pairs = [pair for pair in pairs if pair not in victims]
        if not library.wait_for(lambda: all(pair.is_done() for pair in pairs), SECONDS, 0.05):
            stuck = [pair for pair in pairs if not pair.is_done()]
            raise library.Failure(
                f"seed {seed}: {len(stuck)} pairs of {len(pairs)} are not done\n"
                + "\n".join(one.output() for pair in stuck for one in pair.both())
            )
        for pair in pairs:
            pair.check()
        return f"{len(pairs)} pairs"
    finally:
        for pair in pairs:
            pair.kill()


def members():
    """How many processes share the UDP port: each has bound a name."""
    with open("/proc/net/unix", encoding="ascii") as names:
        return sum("@verbena/wire/" in line for line in names)


def beside_a_stopped_one(variables):
    """Newcomers come in one after the other, and each waits a moment for who does not answer: the
    last of them waits longest, and has RoCEv2 all the same."""
    words = ["rping", "-s", "-a", "127.0.0.1", "-p"]
    servers = [library.Program([*words, str(library.free_port())], variables) for _ in range(2)]
    pairs = []
    try:
        if not library.wait_for(lambda: members() == len(servers), SECONDS):
            raise library.Failure(f"{members()} processes share the port")
        servers[0].process.send_signal(signal.SIGSTOP)
        pairs = [Pair(variables, 300) for _ in range(8)]
        for pair in pairs:
            pair.connect()
        library.wait_for(lambda: all(pair.is_done() for pair in pairs), SECONDS, 0.05)
        for pair in pairs:
            pair.check()
        return f"{len(pairs)} pairs"
    finally:
        for one in [*servers, *pairs]:
            one.kill()


def run_all(report, variables):
    report.case("forty processes", lambda: forty_processes(variables, False))
    report.case("forty processes, some killed", lambda: forty_processes(variables, True))
    report.case("beside one that is stopped", lambda: beside_a_stopped_one(variables))
