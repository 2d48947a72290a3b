# SPDX-License-Identifier: MIT
"""Connections by rdma_cm between our programs and the kernel's connection manager, each end being
the one that connects once. A new program is one more line of PROGRAMS.
"""

import pathlib
import subprocess

from lab import library

SECONDS = 60
TRIES = 12
# Server and client; {address} is the server's. Then port space, port, what the client prints, and
# what is needed of it: the program.
PROGRAMS = [
    ("rping -s -C 5 -v", "rping -c -a {address} -C 5 -v", "tcp", 7174, "rdma-ping-4"),
    ("rping -s -C 3 -S 5000 -V", "rping -c -a {address} -C 3 -S 5000 -V", "tcp", 7174, ""),
    ("ucmatose -c 5 -C 10 -S 3000", "ucmatose -s {address} -c 5 -C 10 -S 3000", "tcp", 7471,
     "return status 0"),
    ("udaddy -c 2 -C 10", "udaddy -s {address} -c 2 -C 10", "udp", 7174, "return status 0"),
    ("ib_write_bw -R -F -n 50 -p 18515", "ib_write_bw -R -F -n 50 -p 18515 {address}", "tcp",
     18515, "BW average"),
    ("ib_send_bw -R -F -n 50 -p 18515", "ib_send_bw -R -F -n 50 -p 18515 {address}", "tcp",
     18515, "BW average"),
    ("{meeting} server 7500", "{meeting} client {address} 7500", "tcp", 7500, "met"),
]
BYSTANDER = 7999
# Nobody listens there: the peer says so, by a REJ or a SIDR_REP.
ALONE = [
    ("rping -c -a {address} -C 1", "RDMA_CM_EVENT_REJECTED, error 8"),
    ("ucmatose -s {address}", "RDMA_CM_EVENT_REJECTED, error: 8"),
    ("udaddy -s {address}", "RDMA_CM_EVENT_UNREACHABLE, error: 1"),
]
CM_NAMES = {  # attributes of connection management (IBTA vol 1, 16.7.2), as tshark has to see them
    0x10: "REQ", 0x12: "REJ", 0x13: "REP", 0x14: "RTU", 0x15: "DREQ", 0x16: "DREP",
    0x17: "SIDR_REQ", 0x18: "SIDR_REP",
}


def run_programs(bench, case, server, client, meeting):
    """Runs a pair. Between its two connections perftest closes its listener and opens it again; the
    kernel refuses who comes meanwhile, whoever it is. An emulated guest takes so long over it that
    one try of three ends so."""
    for refused in range(TRIES):
        try:
            frames = run_pair(bench, case, server, client, meeting)
        except library.Failure as failure:
            is_between = " -R " in case[1] and "REJECTED; error: 8" in str(failure)
            if not is_between or server.name != "rxe":
                raise
        else:
            return f"{frames}, refused {refused} times before" if refused else frames
    raise library.Failure(f"{TRIES} times refused between two connections")


def run_pair(bench, case, server, client, meeting):
    """Each end must leave with 0, and the client print what is expected."""
    server_words, client_words, space, port, expected = case
    words = {"address": server.address, "meeting": meeting}
    before = bench.checker.counts.copy()
    library.wait_for(lambda: not server.serves(space, port), SECONDS, 0.05)
    serving = server.start(server_words.format(**words).split())
    begun = None
    try:
        ready = library.wait_for(
            lambda: serving.status() is not None or server.serves(space, port), SECONDS, 0.05)
        if not ready or serving.status() is not None:
            raise library.Failure("the server does not listen\n" + serving.output())
        begun = client.start(client_words.format(**words).split())
        library.wait_for(lambda: begun.status() is not None, SECONDS)
        library.wait_for(lambda: serving.status() is not None, 0.5 if begun.status() else 10)
        if begun.status() != 0 or serving.status() != 0 or expected not in begun.output():
            raise library.Failure(
                f"client ({client.name}): {begun.status()}\n{begun.output()}\n"
                f"server ({server.name}): {serving.status()}\n{serving.output()}")
    finally:
        for program in (begun, serving):
            if program:
                program.kill()
    sent = bench.look(before)
    return ", ".join(f"{count} frames of {name}" for name, count in sent.items())


def run_alone(bench, words, expected, server, client):
    before = bench.checker.counts.copy()
    # Where no process of ours is there is no NIC, and nobody to say no.
    bystander = server.start(["rping", "-s", "-p", str(BYSTANDER)])
    library.wait_for(lambda: server.serves("tcp", BYSTANDER), SECONDS, 0.05)
    program = client.start(words.format(address=server.address).split())
    try:
        ended = library.wait_for(lambda: program.status() is not None, SECONDS)
        if not ended or expected not in program.output():
            raise library.Failure(f"{expected!r} not seen\n{program.output()}")
    finally:
        program.kill()
        bystander.kill()
    bench.look(before)


def run_all(report, bench, build):
    meeting = str(pathlib.Path(build).resolve() / "bin/test/meeting")
    for case in PROGRAMS:
        name = case[1].format(address="ADDRESS", meeting="meeting")
        for server, client in bench.ends():
            report.case(f"rdma_cm, {server.name} serves: {name}",
                        lambda: run_programs(bench, case, server, client, meeting))
    for words, expected in ALONE:
        for server, client in bench.ends():
            report.case(f"rdma_cm, nobody serves with {server.name}: {words.split()[0]}",
                        lambda: run_alone(bench, words, expected, server, client))


def check_messages(path, own_addresses):
    """tshark knows every kind of message of connection management, of both ends."""
    done = subprocess.run(
        ["tshark", "-n", "-r", str(path), "-Y", "infiniband.mad.mgmtclass == 0x07", "-T", "fields",
         "-e", "ip.src", "-e", "infiniband.mad.attributeid", "-e", "_ws.malformed"],
        capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        raise library.Failure(f"tshark ends with {done.returncode}\n{done.stderr}")
    seen = {True: set(), False: set()}
    for line in done.stdout.splitlines():
        source, attribute, malformed = (line.split("\t") + ["", ""])[:3]
        if malformed:
            raise library.Failure(f"malformed: {line}")
        seen[source in own_addresses].add(int(attribute, 0))
    for is_ours, who in ((True, "verbena"), (False, "rxe")):
        missing = [name for number, name in CM_NAMES.items() if number not in seen[is_ours]]
        if missing:
            raise library.Failure(f"no {', '.join(missing)} of {who} among what tshark knows")
    return f"{len(done.stdout.splitlines())} messages"
