#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""RoCEv2 on a network: Debian's programs between two network namespaces that a pair of virtual
Ethernet interfaces joins, and forty processes that share one address.

Runs in namespaces of its own, as root or as an ordinary user who may make them.
"""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "conformance"))
import conversations  # noqa: E402
import library  # noqa: E402
import many_processes  # noqa: E402
import rsockets_network  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "interop"))
from check_capture import Checker, Reader  # noqa: E402

SECONDS = 60
INSIDE = "VERBENA_TEST_INSIDE"
LONG = os.environ.get("VERBENA_TEST_MODE") == "long"
ADDRESSES = ("10.9.0.1", "10.9.0.2")
# The numbers of the GIDs of an interface with all three.
GIDS = {"link-local": "0", "IPv4": "1", "IPv6": "2"}


def enter_namespaces():
    """This program again, alone in a network; never returns."""
    command = ["unshare", "--net", "--mount"]
    if os.getuid() != 0:
        command = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        print("SKIP all: no network namespaces here")
        sys.exit(library.SKIPPED)
    os.execvpe(
        command[0], [*command, sys.executable, *sys.argv], {**os.environ, INSIDE: "1"}
    )


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise library.Failure(f"{' '.join(words)}: {done.stderr.strip()}")


class TwoHosts:
    """`va` here and `vb` in another network, joined."""

    def __init__(self, mtu):
        self.other = subprocess.Popen(
            ["unshare", "--net", "sleep", "1000"], preexec_fn=library.die_with_parent
        )
        ours = os.readlink("/proc/self/ns/net")
        there = f"/proc/{self.other.pid}/ns/net"
        library.wait_for(lambda: os.readlink(there) != ours, 10)
        self.enter = ["nsenter", f"--net={there}"]
        run("ip", "link", "add", "va", "type", "veth", "peer", "name", "vb")
        run("ip", "link", "set", "vb", "netns", str(self.other.pid))
        self.set_up([], "va", "1", mtu)
        self.set_up(self.enter, "vb", "2", mtu)

    @staticmethod
    def set_up(enter, name, last, mtu):
        run(*enter, "ip", "link", "set", "lo", "up")
        run(*enter, "ip", "link", "set", name, "addrgenmode", "none", "mtu", str(mtu), "up")
        run(*enter, "ip", "addr", "add", f"10.9.0.{last}/24", "dev", name)
        run(*enter, "ip", "addr", "add", f"fd00::{last}/64", "dev", name, "nodad")
        run(*enter, "ip", "addr", "add", f"fe80::{last}/64", "dev", name, "nodad")

    def close(self):
        subprocess.run(["ip", "link", "del", "va"], capture_output=True, check=False)
        self.other.kill()
        self.other.wait()

    def listens(self, port):
        shown = subprocess.run(
            [*self.enter, "ss", "-Hltn", f"sport = :{port}"],
            capture_output=True,
            text=True,
            check=False,
        )
        return bool(shown.stdout)

    def run_pair(self, words, variables):
        """The server there, the client here. Returns what they printed."""
        port = str(library.free_port())
        command = [words[0], "-p", port, *words[1:]]
        server = library.Program(
            [*self.enter, *command, "-d", "vrb_vb"], {**variables, "VERBENA_DEVICES": "vb"}
        )
        client = None
        try:
            if not library.wait_for(lambda: self.listens(port), SECONDS):
                raise library.Failure("the server does not listen\n" + server.output())
            client = library.Program(
                [*command, "-d", "vrb_va", ADDRESSES[1]], {**variables, "VERBENA_DEVICES": "va"}
            )
            both = (client, server)
            library.wait_for(lambda: all(x.process.poll() is not None for x in both), SECONDS)
            if any(x.process.poll() != 0 for x in both):
                raise library.Failure(library.told(client, server))
            return client.output(), server.output()
        finally:
            for program in (server, client):
                if program:
                    program.kill()


    def serves(self, service):
        shown = subprocess.run([*self.enter, "cat", f"/proc/{self.other.pid}/net/unix"],
                               capture_output=True, text=True, check=False)
        return f"@verbena/port/{service:016x}/" in shown.stdout

    def connect(self, server_words, client_words, service, variables, seconds=SECONDS):
        """Two programs that use rdma_cm."""
        server = library.Program([*self.enter, *server_words],
                                 {**variables, "VERBENA_DEVICES": "vb"})
        client = None
        try:
            if not library.wait_for(lambda: self.serves(service), SECONDS):
                raise library.Failure("the server does not listen\n" + server.output())
            client = library.Program(client_words, {**variables, "VERBENA_DEVICES": "va"})
            both = (client, server)
            library.wait_for(lambda: all(x.process.poll() is not None for x in both), seconds)
            if any(x.process.poll() != 0 for x in both):
                raise library.Failure(library.told(client, server))
            return client.output(), server.output()
        finally:
            for program in (server, client):
                if program:
                    program.kill()

    def demonstrate(self, options, variables):
        """`verbena demo` with its server there and its client here."""
        program = str(pathlib.Path(variables["LD_LIBRARY_PATH"]).parent / "bin/verbena")
        port = 20050 if options else 20049  # the usual one where none is named
        ends = self.connect([program, "demo", "--listen", "--bytes", "30000001", *options],
                            [program, "demo", "--connect", ADDRESSES[1], *options],
                            0x106 << 16 | port, variables)
        for end, wanted in zip(ends, ("the checksum of its memory is right", "30000001 bytes at")):
            if wanted not in end:
                raise library.Failure(f"{wanted!r} not seen\n{end}")


def not_there(variables, address):
    """A neighbour that does not answer is told of in the time that the program gives (rping: two
    seconds), and not only when nobody has answered a request for more than a minute."""
    program = library.Program(["rping", "-c", "-a", address, "-C", "1"],
                              {**variables, "VERBENA_DEVICES": "va"})
    try:
        library.wait_for(lambda: program.process.poll() is not None, 10)
        if "RDMA_CM_EVENT_ADDR_ERROR" not in program.output():
            raise library.Failure("no RDMA_CM_EVENT_ADDR_ERROR\n" + program.output())
    finally:
        program.kill()


def by_rdma_cm(report, variables):
    hosts = TwoHosts(1500)

    def meet(server_words, client_words, service):
        hosts.connect(server_words, client_words, service, variables)

    try:
        for address in (ADDRESSES[1], "fd00::2", "fe80::2%va"):
            any_address = "::" if ":" in address else "0.0.0.0"
            report.case(f"rping to {address}", lambda a=address, s=any_address: meet(
                ["rping", "-s", "-a", s, "-C", "20"], ["rping", "-c", "-a", a, "-C", "20"],
                0x1061C06))
        report.case("ucmatose", lambda: meet(
            ["ucmatose", "-c", "10"], ["ucmatose", "-s", ADDRESSES[1], "-c", "10"], 0x1061D2F))
        report.case("udaddy", lambda: meet(
            ["udaddy"], ["udaddy", "-s", ADDRESSES[1]], 0x1111C06))
        for address in ("10.9.0.77", "fd00::77", "fe80::77%va"):
            report.case(f"nobody is {address}", lambda a=address: not_there(variables, a))
        for options in ([], ["--port", "20050"]):
            report.case(" ".join(["verbena demo", *options]),
                        lambda o=options: hosts.demonstrate(o, variables))
        rsockets_network.run_all(report, hosts, variables, LONG)
    finally:
        hosts.close()


def programs(mtu):
    """What runs over every kind of address."""
    verbs_mtu = "4096" if mtu == 9000 else "1024"
    for kind in ("rc", "uc", "srq"):
        yield [f"ibv_{kind}_pingpong", "-c", "-s", "70001", "-m", verbs_mtu, "-n", "100"]
    yield ["ibv_ud_pingpong", "-c", "-s", "1000", "-n", "100"]
    yield ["ibv_rc_pingpong", "-c", "-e", "-m", "256", "-n", "100"]


def more_programs():
    for verb in ("write", "read", "send"):
        yield [f"ib_{verb}_bw", "-F", "-s", "65537", "-n", "200", "-q", "2"]
    yield ["ib_atomic_bw", "-F", "-n", "200"]
    yield ["ib_send_lat", "-F", "-e", "-n", "200"]
    yield ["ib_send_bw", "-F", "-c", "UD", "-s", "1024", "-n", "200"]


def with_gid(words, gid):
    return [*words, "-g" if words[0].startswith("ibv_") else "-x", gid]


def between_hosts(report, variables):
    for mtu in (1500, 9000):
        hosts = TwoHosts(mtu)
        try:
            for kind, gid in GIDS.items():
                all_words = [*programs(mtu), *(more_programs() if kind != "link-local" else ())]
                for words in all_words:
                    name = f"MTU {mtu}, {kind}: {' '.join(words)}"
                    command = with_gid(words, gid)
                    report.case(name, lambda c=command: hosts.run_pair(c, variables) and None)
        finally:
            hosts.close()


def over_a_bad_line(report, variables):
    """One packet in a hundred is lost, in both directions."""
    hosts = TwoHosts(1500)
    try:
        netem = ["tc", "qdisc", "add", "dev", "va", "root", "netem", "loss", "1%"]
        try:
            run(*netem)
        except (library.Failure, OSError) as why:
            report.skip("1 % loss", str(why))
            return
        for words in (
            ["ibv_rc_pingpong", "-c", "-s", "70001", "-n", "200"],
            ["ib_write_bw", "-F", "-s", "65536", "-n", "500"],
            ["ib_read_bw", "-F", "-s", "65536", "-n", "500"],
        ):
            command = with_gid(words, GIDS["IPv4"])
            report.case(
                f"1 % loss: {' '.join(words)}",
                lambda c=command: run_over(lambda: hosts.run_pair(c, variables), c),
            )
    finally:
        hosts.close()


def with_faults(report, program, variables):
    """A line of our own making that loses, doubles, changes the order and damages, on `lo`."""
    seed = random.randrange(1 << 32)
    faults = f"duplicate=1%,reorder=1%,corrupt=0.5%,drop=1%,seed={seed}"
    ours_in = ",".join(item if item.startswith("seed") else f"in.{item}"
                       for item in faults.split(","))
    print(f"faults: {faults}", flush=True)
    for direction, line in (("both ways", faults), ("what comes", ours_in)):
        for agree in ("auto", "never"):
            bad = {**variables, "VERBENA_FAULT": line, "VERBENA_AGREE": agree}
            for words in (
                ["ibv_rc_pingpong", "-c", "-s", "20001", "-n", "200"],
                ["ib_write_bw", "-F", "-s", "65536", "-n", "300"],
                ["ib_read_bw", "-F", "-s", "65536", "-n", "300"],
                ["ib_send_bw", "-F", "-s", "8191", "-n", "300"],
                ["ib_atomic_bw", "-F", "-n", "300"],
            ):
                gid = "1" if words[0] == "ib_send_bw" else "0"
                command = with_gid([*words, "-d", "vrb_lo", "-p", "{port}"], gid)
                report.case(f"faults, {direction}, {agree}: {' '.join(words)}",
                            lambda c=command, v=bad: run_over(
                                lambda: library.run_pair(c, v, SECONDS), c))
    slow = {**variables, "VERBENA_FAULT": "delay=1ms,jitter=500us,rate=200Mbit"}
    command = ["ibv_rc_pingpong", "-c", "-n", "50", "-g", "0", "-d", "vrb_lo", "-p", "{port}"]
    report.case("a slow line", lambda: check_slow(library.run_pair(command, slow, SECONDS)[0]))
    report.case("probe: loss", lambda: probe(program, "loss", variables))
    report.case("faults that nobody understands", lambda: wrong_faults(variables))
    report.case("a recording", lambda: record({**variables, "VERBENA_FAULT": ours_in}))


def run_over(run_both, command):
    """On a line that loses, the answer to a program's very last message may be lost when its peer,
    which has all that it wants, is gone: nothing helps against that, so there is another try.
    """
    for lost in range(4):
        try:
            run_both()
            return f"the last answer was lost {lost} times" if lost else None
        except library.Failure as failure:
            told = str(failure)
            last = "retry counter exceeded" in told and told.count("iters in") == 1
            if not last or "invalid data" in told or "pingpong" not in command[0]:
                raise
    raise library.Failure("the last answer was lost four times")


def check_slow(output):
    took = float(output.split(" usec/iter")[0].split()[-1])
    if took < 4000:  # four times a millisecond: both ends delay both ways
        raise library.Failure(f"{took} us a round trip\n{output}")
    return f"{took} us a round trip"


def wrong_faults(variables):
    for value in ("loss=1%", "drop=1"):
        done = subprocess.run(["ibv_devinfo"], env={**variables, "VERBENA_FAULT": value},
                              capture_output=True, text=True, check=False, timeout=SECONDS)
        told = [line for line in done.stderr.splitlines() if f"VERBENA_FAULT={value}" in line]
        if len(told) != 1 or value not in told[0]:
            raise library.Failure(f"{value}: {done.stderr}")


def record(variables):
    """Both ends record; what came is damaged behind that, so the recordings are of good packets."""
    with tempfile.TemporaryDirectory() as folder:
        pattern = f"{folder}/%p.pcapng"
        command = ["ibv_rc_pingpong", "-c", "-s", "20001", "-n", "100", "-g", "0"]
        command += ["-d", "vrb_lo", "-p", "{port}"]
        captured = {**variables, "VERBENA_CAPTURE": pattern}
        run_over(lambda: library.run_pair(command, captured, SECONDS), command)
        paths = sorted(pathlib.Path(folder).glob("*.pcapng"))
        if len(paths) < 2:
            raise library.Failure(f"{len(paths)} recordings")
        return ", ".join(check_recording(path) for path in paths)


def check_recording(path):
    def tshark(*words):
        done = subprocess.run(["tshark", "-n", "-r", path, *words], capture_output=True, text=True,
                              check=False, timeout=SECONDS)
        if done.returncode != 0:
            raise library.Failure(f"tshark ends with {done.returncode}\n{done.stderr}")
        return done.stdout

    strange = tshark("-Y", "_ws.malformed or not infiniband")
    if strange:
        raise library.Failure("malformed for tshark:\n" + strange[:2000])
    classic = path.with_suffix(".pcap")
    tshark("-F", "pcap", "-w", classic)
    checker = Checker(among_ours=True)
    for frame in Reader(classic).frames():
        checker.take(frame)
    if checker.problems:
        raise library.Failure(f"{len(checker.problems)} bad frames\n" + checker.problems[0])
    # Each message has twenty packets, and goes there and back.
    if checker.frames < 100 * 2 * 20:
        raise library.Failure(f"only {checker.frames} frames")
    return f"{checker.frames} frames"


def probe(program, scene, variables):
    """A scene of wire_probe.cc, which has both sides."""
    done = subprocess.run(
        [program, scene],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    if done.returncode != 0:
        raise library.Failure(f"exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def multicast(report, program, variables):
    """To processes of this host, and of another. IPv6 has no multicast on `lo`."""
    report.case("multicast-ipv4 on lo", lambda: probe(program, "multicast-ipv4", variables))
    hosts = TwoHosts(1500)
    try:
        places = {"one host": {"WIRE_PROBE_OTHER": "/proc/self/ns/net",
                               "WIRE_PROBE_DEVICES": "va,va"},
                  "two hosts": {"WIRE_PROBE_OTHER": f"/proc/{hosts.other.pid}/ns/net",
                                "WIRE_PROBE_DEVICES": "va,vb"}}
        for where, more in places.items():
            for scene in ("multicast-ipv4", "multicast-ipv6"):
                report.case(f"{scene}, {where}",
                            lambda s=scene, m=more: probe(program, s, {**variables, **m}))
    finally:
        hosts.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", dest="folder", default=os.environ.get("VERBENA_LIBRARY"))
    parser.add_argument("--probe", metavar="PROGRAM", required=True, help="wire_probe")
    parser.add_argument("--only", metavar="REGEX", help="run only the cases whose name matches")
    options = parser.parse_args()
    if not options.folder:
        parser.error("--library or VERBENA_LIBRARY is needed")
    if INSIDE not in os.environ:
        enter_namespaces()
    variables = library.environment(options.folder)
    report = library.Report(options.only)
    run("ip", "link", "set", "lo", "up")
    on_lo = {**variables, "VERBENA_PATH": "wire"}
    many_processes.run_all(report, on_lo)
    conversations.run_all(report, on_lo)
    for scene in ("exit", "agree", "multicast-errors", "multicast-ipv4"):
        report.case(f"probe: {scene}", lambda s=scene: probe(options.probe, s, on_lo))
    multicast(report, options.probe, variables)
    with_faults(report, options.probe, on_lo)
    by_rdma_cm(report, variables)
    between_hosts(report, variables)
    over_a_bad_line(report, variables)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
