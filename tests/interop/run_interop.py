#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Our programs against Linux's rxe, on a wire between a network namespace and a virtual machine.

Unmodified programs and one that checks every byte run on both ends, each end being the server once.
Everything on the wire is recorded: a checker that uses none of our code recomputes every ICRC, and
tshark looks for what is malformed. VERBENA_TEST_MODE=long has all sizes and MTUs. See
docs/interop.md.
"""

import argparse
import collections
import concurrent.futures
import itertools
import os
import pathlib
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import connections  # noqa: E402
import guest  # noqa: E402
import kernel  # noqa: E402
import lab  # noqa: E402
import rsockets  # noqa: E402
from check_capture import Checker, Reader  # noqa: E402
from lab import library  # noqa: E402

LONG = os.environ.get("VERBENA_TEST_MODE") == "long"
SECONDS = 60  # for one case; most take one or two
WIRE_MTU = 4200  # path MTU 4096
PATH_MTUS = (256, 512, 1024, 2048, 4096)
IPV4, IPV6 = 1, 2  # places in the GID tables of both
NEEDED = (guest.QEMU, "busybox", "tcpdump", "tshark", "ip", "rdma", "unshare", "dpkg-deb",
          "ibv_rc_pingpong", "ib_write_bw", "rping", "ucmatose", "udaddy",
          "rstream", "riostream", "udpong")
RXE_PROVIDER = "/etc/libibverbs.d/rxe.driver"
# tshark guesses what a payload may be, and then calls some of it malformed.
GUESSES = ("smcr_infiniband", "smb_direct_infiniband", "rpcrdma_infiniband", "nvme_rdma", "lnet_ib",
           "iser_infiniband", "eth_over_ib", "mellanox_eoib", "sdp_infiniband", "fc_infiniband")
# Over IPv6, too, rxe sends no UDP checksum.
MALFORMED = ("_ws.malformed or not infiniband or ip.checksum.status == 0"
             " or (udp.checksum.status == 0 and udp.checksum != 0)")
FRAMES_FOR_TSHARK = 500000  # some twenty seconds
REPORTED = 5
ACK_TIMEOUT = 16  # 268 ms: a busy machine may let nobody run for a second
LOSS = 50  # one packet in so many
KEPT = 256 << 20  # the most that a recording without a finding may keep of the disk


class Case:
    """A program for both ends. Its words hold {device}, {port} and {gid} of the end."""

    def __init__(self, words, check, gid=IPV4, name=None):
        self.words = [str(word) for word in words]
        self.check = check
        self.gid = gid
        self.name = name or " ".join(word for word in self.words if "{" not in word)
        self.name += " over IPv6" if gid == IPV6 else ""


def exchanges(program, plan=None):
    few = [("rc", 1024, IPV4), ("rc", 256, IPV6), ("rc", 4096, IPV4), ("refusals", 1024, IPV4),
           ("uc", 2048, IPV4), ("ud", 512, IPV6)]
    parts = ("rc", "refusals", "uc", "ud")
    many = list(itertools.product(parts, PATH_MTUS, (IPV4, IPV6)))
    for part, mtu, gid in plan or (many if LONG else few):
        words = [program, "{device}", "{gid}", mtu, part, "{port}"]
        yield Case(words, check_exchange, gid, f"exchange {part}, MTU {mtu}")


def pingpongs():
    plan = [("rc", 4097, 1024, IPV4), ("uc", 3001, 512, IPV4), ("ud", 1021, None, IPV4),
            ("srq", 2050, 256, IPV4), ("rc", 70001, 4096, IPV6)]
    if LONG:
        plan = [(kind, size, mtu, gid) for kind in ("rc", "uc", "srq") for mtu in PATH_MTUS
                for size in (1, 63, mtu, 3 * mtu + 1) for gid in (IPV4, IPV6)]
        plan += [("ud", size, None, gid) for size in (1, 63, 1024) for gid in (IPV4, IPV6)]
    for kind, size, mtu, gid in plan:
        words = [f"ibv_{kind}_pingpong", "-d", "{device}", "-g", "{gid}", "-p", "{port}"]
        words += ["-c", "-n", "50", "-s", size, *(["-m", mtu] if mtu else [])]
        # With fewer receives a datagram may find none.
        yield Case(words, check_pingpong, gid, f"{words[0]} -s {size}" + f" -m {mtu}" * bool(mtu))
    for kind in ("rc", "ud"):
        words = [f"ibv_{kind}_pingpong", "-d", "{device}", "-g", "{gid}", "-p", "{port}"]
        yield Case([*words, "-e", "-c", "-n", "50", "-s", "999"], check_pingpong,
                   name=f"{words[0]} -e -s 999")


def perftests(short=False):
    plan = [("write", "-s 65537 -m 4096"), ("read", "-s 65537 -m 1024"), ("send", "-s 8191 -m 256"),
            ("send", "-s 1023 -c UD"), ("write", "-s 10001 -c UC"), ("write", "-s 3001 -b -q 2"),
            ("atomic", "-A FETCH_AND_ADD"), ("atomic", "-A CMP_AND_SWAP")]
    if LONG and not short:
        for verb in ("write", "read", "send"):
            plan += [(verb, "-a -m 4096")]
            plan += [(verb, f"-s {size} -m {mtu}") for size in (2, 99991) for mtu in PATH_MTUS]
            plan += [(verb, f"-s 5003 -m {mtu} -b -q 4") for mtu in PATH_MTUS]
        plan += [("send", "-c UC -s 20001"), ("send", "-e -s 777"), ("read", "-e -s 777"),
                 ("atomic", "-A FETCH_AND_ADD -b -q 4"), ("atomic", "-A CMP_AND_SWAP -e")]
    for verb, options in plan:
        words = [f"ib_{verb}_bw", "-d", "{device}", "-x", "{gid}", "-p", "{port}", "-F"]
        words += ["-u", ACK_TIMEOUT, "-n", "5" if "-a" in options.split() else "100"]
        words += options.split()
        yield Case(words, check_perftest, name=f"{words[0]} {options}")
    if LONG and not short:
        for gid in (IPV4, IPV6):
            for verb in ("write", "read", "send", "atomic"):
                words = [f"ib_{verb}_lat", "-d", "{device}", "-x", "{gid}", "-p", "{port}", "-F"]
                words += ["-u", ACK_TIMEOUT, "-n", "100"]
                yield Case(words, check_perftest, gid, f"ib_{verb}_lat")


def reliable(program):
    yield Case([program, "{device}", "{gid}", 1024, "rc", "{port}"], check_exchange,
               name="exchange rc, MTU 1024")
    for words in ("ib_write_bw -s 65537 -n 30", "ib_read_bw -s 65537 -n 30",
                  "ib_send_bw -s 5003 -n 99", "ib_atomic_bw -A FETCH_AND_ADD -n 99"):
        ends = f"-d {{device}} -x {{gid}} -p {{port}} -F -u {ACK_TIMEOUT}"
        yield Case([*words.split(), *ends.split()], check_perftest, name=words)


def check_exchange(client, _):
    if not re.search(r"^[1-9]\d* passed, 0 failed$", client, re.MULTILINE):
        raise library.Failure(client)


def check_pingpong(client, server):
    for output in (client, server):
        if "invalid data" in output or "50 iters in" not in output:
            raise library.Failure("no or wrong result\n" + output)


def check_perftest(client, _):
    # Size and iterations; what is slow and small rounds to 0 in some of the columns behind them.
    rows = [line.split() for line in client.splitlines() if re.match(r"\s*\d+\s+\d+\s", line)]
    fast = all(any(float(number) > 0 for number in row[2:]) for row in rows)
    if not rows or not (fast or library.knows_no_time(client)):
        raise library.Failure("no result\n" + client)


class Bench:
    """Both ends, and the recording of what goes on between them."""

    def __init__(self, wire, ours, theirs, recording):
        self.wire = wire
        self.ours = ours
        self.theirs = theirs
        self.recording = recording
        self.reader = Reader(recording.path)
        self.checker = Checker()
        self.ports = itertools.count(20000)

    def ends(self):
        """Server and client, both ways."""
        return (self.theirs, self.ours), (self.ours, self.theirs)

    def run(self, case, server, client):
        """Runs a case, and looks at what it sent. Returns a note for its line."""
        before = self.checker.counts.copy()
        port = next(self.ports)
        told = []
        try:
            told = self.run_pair(case, server, client, port)
        except library.Failure as failure:
            try:
                self.look(before)
            except library.Failure as wrong:
                raise library.Failure(f"{failure}\non the wire: {wrong}") from failure
            raise
        sent = self.look(before)
        # A receiver of UC and UD answers nothing.
        if not sent[client.name]:
            raise library.Failure(f"nothing of {client.name} on the wire")
        case.check(*told)
        return ", ".join(f"{count} frames of {name}" for name, count in sent.items())

    def run_together(self, cases):
        """All of them at a time, each both ways: the port is shared by processes of ours."""
        before = self.checker.counts.copy()
        pairs = list(itertools.product(cases, self.ends()))
        with concurrent.futures.ThreadPoolExecutor(len(pairs)) as pool:
            runs = [(case, pool.submit(self.run_pair, case, *ends, next(self.ports)))
                    for case, ends in pairs]
        self.look(before)
        for case, run in runs:
            case.check(*run.result())

    def run_pair(self, case, server, client, port):
        def start(end, *more):
            words = [word.format(device=end.device, gid=case.gid, port=port) for word in case.words]
            return end.start([*words, *more])

        programs = {f"server ({server.name})": start(server)}
        (serving,) = programs.values()
        try:
            ready = library.wait_for(
                lambda: server.is_listening(port) or serving.status() is not None, SECONDS, 0.02)
            if not ready or serving.status() is not None:
                raise library.Failure("the server does not listen\n" + serving.output())
            programs[f"client ({client.name})"] = begun = start(client, server.address)
            # A client that failed leaves a server that waits for ever.
            library.wait_for(lambda: begun.status() is not None, SECONDS)
            library.wait_for(lambda: serving.status() is not None, 0.5 if begun.status() else 10)
            if any(program.status() != 0 for program in programs.values()):
                raise library.Failure("\n".join(
                    f"-- {who}: " + ("still running" if program.status() is None else
                                     f"exit status {program.status()}") + f"\n{program.output()}"
                    for who, program in programs.items()))
            return begun.output(), serving.output()
        finally:
            for program in programs.values():
                program.kill()

    def look(self, before):
        """Checks the frames that are new. Returns how many each end has sent."""
        at_problem = len(self.checker.problems)
        quiet = time.monotonic() + self.recording.delay
        while time.monotonic() < quiet:
            for frame in self.reader.frames():
                self.checker.take(frame)
                quiet = time.monotonic() + self.recording.delay
            time.sleep(0.02)
        problems = self.checker.problems[at_problem:]
        if problems:
            raise library.Failure(f"{len(problems)} bad frames\n" + "\n".join(problems[:REPORTED]))
        fresh = self.checker.counts - before
        sent = {end.name: 0 for end in (self.ours, self.theirs)}
        for (source, kind), count in fresh.items():
            if kind.endswith(":EMPTY") and self.is_ours(source):
                raise library.Failure(f"we sent {kind}")
            sent[(self.ours if self.is_ours(source) else self.theirs).name] += count
        return sent

    def is_ours(self, source):
        family = socket.AF_INET if len(source) == 4 else socket.AF_INET6
        own = (address.split("/")[0] for address in self.wire.addresses)
        return source in (socket.inet_pton(family, a) for a in own if (":" in a) == (family == 10))


def tshark(path):
    """What tshark calls malformed, in all that was recorded."""
    words = ["tshark", "-n", "-r", path, "-c", FRAMES_FOR_TSHARK, "-Y", MALFORMED]
    words += ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]
    for guess in GUESSES:
        words += ["--disable-heuristic", guess]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          check=False, timeout=600)
    if done.returncode != 0:
        raise library.Failure(f"tshark ends with {done.returncode}\n{done.stderr}")
    if done.stdout:
        raise library.Failure("\n".join(done.stdout.splitlines()[:REPORTED]))


def run_all(report, bench, program):
    def run(cases, what=""):
        for case, (server, client) in itertools.product(cases, bench.ends()):
            report.case(f"{server.name} serves: {case.name}{what}",
                        lambda: bench.run(case, server, client))

    run([*exchanges(program), *pingpongs(), *perftests()])
    # Only RC stands what comes when nobody has time to look.
    report.case("ten programs at a time", lambda: bench.run_together(list(reliable(program))))
    bench.theirs.lose(LOSS)
    run(reliable(program), f", one packet in {LOSS} lost")
    bench.theirs.lose_nothing()
    for mtu in (1500, 9000) if LONG else ():
        bench.wire.set_mtu(mtu)
        bench.theirs.set_mtu(mtu)
        run([*exchanges(program, [("rc", 1024, IPV4), ("ud", 1024, IPV6)]), *perftests(short=True)],
            f", with an MTU of {mtu}")


def check_marks(bench):
    """We ask whether rxe is one of ours (decision 12), and it neither minds nor answers."""
    asked = collections.Counter()
    for (source, _), count in bench.checker.flows.marked.items():
        asked[bench.is_ours(source)] += count
    if not asked[True]:
        raise library.Failure("nothing of ours was marked")
    if asked[False]:
        raise library.Failure(f"rxe marked {asked[False]} frames")
    return f"{asked[True]} frames asked"


def summary(bench):
    for who, is_ours in (("verbena", True), ("rxe", False)):
        kinds = collections.Counter()
        for (source, name), count in bench.checker.counts.items():
            if bench.is_ours(source) == is_ours:
                kinds[name] += count
        print(f"{who} sent: " + " ".join(f"{name}={kinds[name]}" for name in sorted(kinds)))


def work(options, report, folder):
    wire = lab.Wire(WIRE_MTU)
    machine = guest.Guest(kernel.fetch(options.build / "interop/kernel"), folder, wire)
    recording = None
    try:
        machine.wait_for_boot()
        print(f"the guest came up in {machine.boot_seconds:.1f} s", flush=True)
        recording = lab.Recording(wire, options.build / "interop/wire.pcap")
        bench = Bench(wire, lab.Ours(options.build, wire), machine, recording)
        run_all(report, bench, str(options.build.resolve() / "bin/test/exchange"))
        connections.run_all(report, bench, options.build)
        rsockets.run_all(report, bench, options.build)
        report.case("rxe ignores what we ask", lambda: check_marks(bench))
        summary(bench)
    finally:
        missed = recording.stop() if recording else 0
        machine.stop()
    if missed:
        report.skip("some frames", f"the recording misses {missed} of them")
    report.case("tshark finds nothing malformed", lambda: tshark(recording.path))
    if not options.only:
        own = [address.split("/")[0] for address in wire.addresses]
        report.case("tshark knows all of rdma_cm",
                    lambda: connections.check_messages(recording.path, own))
    if not report.failed and recording.path.stat().st_size > KEPT:
        recording.path.unlink()


def cannot(options):
    """Why this machine is not able to do it at all; what is only not installed is a failure."""
    if platform.machine() != "x86_64":
        return f"the guest is an x86-64 machine, this is {platform.machine()}"
    missing = [name for name in NEEDED if not shutil.which(name)]
    if not os.path.exists(RXE_PROVIDER):
        missing.append(RXE_PROVIDER)
    if missing:
        raise library.Failure(f"not installed: {', '.join(missing)}; run scripts/setup test")
    for built in ("bin/verbena", "bin/test/exchange", "bin/test/meeting", "lib/with_grh.so"):
        if not (options.build / built).exists():
            raise library.Failure(f"{options.build} has no {built}: build it first")
    try:
        lab.require()
    except lab.Impossible as why:
        return str(why)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path, help="the build folder")
    parser.add_argument("--only", metavar="REGEX", help="run only the cases whose name matches")
    options = parser.parse_args()
    report = library.Report(options.only)
    if os.environ.get(lab.INSIDE) != "1":
        try:
            why = cannot(options)
            if why:
                report.skip("interop with rxe", why)
                return report.close()
            kernel.fetch(options.build / "interop/kernel")
        except (library.Failure, kernel.Unavailable) as problem:
            broken(report, problem)
            return report.close()
        lab.enter()
    with tempfile.TemporaryDirectory(prefix="verbena-interop-") as folder:
        try:
            work(options, report, pathlib.Path(folder))
        except (library.Failure, OSError) as problem:
            broken(report, problem)
    return report.close()


def broken(report, problem):
    """The place of the test is not what it should be: a failure whatever --only says."""
    report.failed.append("the lab")
    print(f"FAIL the lab\n{problem}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
