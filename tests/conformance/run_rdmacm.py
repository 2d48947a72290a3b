#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Debian's rdmacm-utils, perftest with -R and rdma-core's test_rdmacm, unmodified, on this host;
and what happens where nobody listens, or somebody does already.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import library  # noqa: E402
import run_pyverbs as pyverbs  # noqa: E402

SECONDS = 60
SILENCE = 20  # far less than a client waits for an answer that it was told to wait for
GROWTH_KIB = 4096  # that thousands of connections may leave; the heap is never quite the same
HOST = "127.0.0.1"

GID = "::ffff:127.0.0.1"
IPV6 = "::1"

# Server, client (`{host}` is where), port space, port (0: {port} is a free one), and what the
# client must print. udaddy has a port that nobody can change.
PAIRS = [
    ("rping -s -p {port} -C 10 -v", "rping -c -a {host} -p {port} -C 10 -v", "tcp", 0,
     "rdma-ping-9"),
    ("rping -s -p {port} -C 3 -S 4096 -V", "rping -c -a {host} -p {port} -C 3 -S 4096 -V", "tcp",
     0, ""),
    ("rping -s -p {port} -q -C 5", "rping -c -q -a {host} -p {port} -C 5", "tcp", 0, ""),
    ("ucmatose -p {port}", "ucmatose -s {host} -p {port}", "tcp", 0, "return status 0"),
    ("ucmatose -p {port} -c 20 -C 50 -S 4000", "ucmatose -s {host} -p {port} -c 20 -C 50 -S 4000",
     "tcp", 0, "return status 0"),
    ("ucmatose -p {port} -m", "ucmatose -s {host} -p {port} -m", "tcp", 0, "return status 0"),
    ("ucmatose -p {port} -f gid", "ucmatose -s {gid} -p {port} -f gid", "tcp", 0,
     "return status 0"),
    ("ucmatose -p {port} -f gid -b {ipv6}", "ucmatose -s {ipv6} -p {port} -f gid", "tcp", 0,
     "return status 0"),
    ("ucmatose -p {port} -f gid -P ib", "ucmatose -s {gid} -p {port} -f gid -P ib", "ib", 0,
     "return status 0"),
    ("udaddy -f gid", "udaddy -s {gid} -f gid", "udp", 7174, "return status 0"),
    ("udaddy", "udaddy -s {host}", "udp", 7174, "return status 0"),
    ("udaddy -c 5 -C 20", "udaddy -s {host} -c 5 -C 20", "udp", 7174, "return status 0"),
    ("rdma_server -p {port}", "rdma_client -s {host} -p {port}", "tcp", 0, "end 0"),
    ("rdma_xserver -p {port}", "rdma_xclient -s {host} -p {port}", "tcp", 0, "end 0"),
    ("rdma_xserver -p {port} -c x", "rdma_xclient -s {host} -p {port} -c x", "ib", 0, "end 0"),
    ("ib_write_bw -R -n 200 -p {port}", "ib_write_bw -R -n 200 -p {port} {host}", "tcp", 0,
     "BW average"),
    ("ib_send_bw -R -n 200 -p {port}", "ib_send_bw -R -n 200 -p {port} {host}", "tcp", 0,
     "BW average"),
    ("ib_send_lat -R -n 200 -p {port}", "ib_send_lat -R -n 200 -p {port} {host}", "tcp", 0,
     "t_typical"),
    ("ib_read_lat -R -n 200 -p {port}", "ib_read_lat -R -n 200 -p {port} {host}", "tcp", 0,
     "t_typical"),
]
# Its server serves on and on.
ENDLESS = ("cmtime -c 100 -p {port}", "cmtime -s {host} -c 100 -p {port}", "tcp", 0, "disconnect")


def with_port(words, port):
    return words.format(host=HOST, gid=GID, ipv6=IPV6, port=port).split()


def run_pair(variables, case, is_endless=False):
    server_words, client_words, space, port, expected = case
    port = port or library.free_service(space)
    # The kernel takes the names of who went before back a moment after that.
    library.wait_for(lambda: not library.is_served(space, port), SECONDS)
    server = library.Program(with_port(server_words, port), variables)
    client = None
    try:
        ready = library.wait_for(
            lambda: library.is_served(space, port) or server.process.poll() is not None, SECONDS
        )
        if not ready or server.process.poll() is not None:
            raise library.Failure("the server does not listen\n" + server.output())
        client = library.Program(with_port(client_words, port), variables)
        both = [client] if is_endless else [client, server]
        library.wait_for(lambda: all(one.process.poll() is not None for one in both), SECONDS)
        wrong = [one.arguments[0] for one in both if one.process.poll() != 0]
        if wrong or expected not in client.output():
            states = [one.process.poll() for one in both]
            raise library.Failure(f"exit statuses {states}\n" + library.told(client, server))
    finally:
        for program in (server, client):
            if program:
                program.kill()


def run_alone(variables, words, expected, seconds):
    """A program that must end by itself in that time, and say why."""
    began = time.monotonic()
    program = library.Program(words.split(), variables)
    try:
        ended = library.wait_for(lambda: program.process.poll() is not None, seconds)
        if not ended or expected not in program.output():
            took = time.monotonic() - began
            raise library.Failure(f"{expected!r} not seen in {took:.1f} s\n{program.output()}")
    finally:
        program.kill()


def run_port_taken(variables):
    port = library.free_service("tcp")
    first = library.Program(["rping", "-s", "-p", str(port)], variables)
    try:
        if not library.wait_for(lambda: library.is_served("tcp", port), SECONDS):
            raise library.Failure("the server does not listen\n" + first.output())
        for words in (f"rping -s -p {port}", f"rping -s -a {HOST} -p {port}",
                      f"ucmatose -p {port}", f"ucmatose -f gid -p {port}",
                      f"ucmatose -f gid -b {GID} -p {port}"):
            run_alone(variables, words, "rdma_bind_addr: " if "rping" in words else "bind addr",
                      SECONDS)
    finally:
        first.kill()
    # The port is free as soon as its process is gone, however it went.
    server, client, space, _, expected = PAIRS[0]
    run_pair(variables, (server, client, space, port, expected))


def run_dying_server(variables):
    """A client whose server is killed hears of it."""
    port = library.free_service("tcp")
    server = library.Program(["rping", "-s", "-P", "-p", str(port)], variables)
    client = None
    try:
        library.wait_for(lambda: library.is_served("tcp", port), SECONDS)
        client = library.Program(["rping", "-c", "-a", HOST, "-p", str(port), "-v"], variables)
        if not library.wait_for(lambda: "rdma-ping-100:" in client.output(), SECONDS):
            raise library.Failure("no connection\n" + library.told(client, server))
        server.kill()
        if not library.wait_for(lambda: client.process.poll() is not None, SECONDS):
            raise library.Failure("the client goes on\n" + client.output()[-1000:])
    finally:
        for program in (server, client):
            if program:
                program.kill()


def run_silent_server(variables, program):
    """A server that took the request, does not answer and is killed: its client hears of it, and
    not only when it would have given up, which takes minutes."""
    port = library.free_service("tcp")
    server = library.Program([program, str(port)], variables)
    client = None
    try:
        library.wait_for(lambda: library.is_served("tcp", port), SECONDS)
        client = library.Program(["rping", "-c", "-a", HOST, "-p", str(port), "-C", "1"],
                                 variables)
        if not library.wait_for(lambda: "asked" in server.output(), SECONDS):
            raise library.Failure("no request\n" + library.told(client, server))
        time.sleep(0.5)  # until the client has asked again, and was told to wait
        if client.process.poll() is not None:
            raise library.Failure("the client did not wait\n" + client.output())
        server.kill()
        library.wait_for(lambda: client.process.poll() is not None, SILENCE)
        if "RDMA_CM_EVENT_REJECTED" not in client.output():
            raise library.Failure("the client heard nothing\n" + client.output())
    finally:
        for one in (server, client):
            if one:
                one.kill()


def run_patient_client(variables, program):
    """A listener that lives and never answers: its client is told when its patience is used up,
    however often it was asked for time."""
    port = library.free_service("tcp")
    server = library.Program([program, str(port)], variables)
    try:
        library.wait_for(lambda: library.is_served("tcp", port), SECONDS)
        run_alone({**variables, "VERBENA_CONNECT_SECONDS": "2"},
                  f"rping -c -a {HOST} -p {port} -C 1", "RDMA_CM_EVENT_UNREACHABLE, error -110",
                  SECONDS)
        if "asked" not in server.output() or server.process.poll() is not None:
            raise library.Failure("the server was not asked, or has ended\n" + server.output())
    finally:
        server.kill()


def run_churn(variables, program):
    """What both ends hold after some thousand connections, with all that they remember of those, is
    what they hold after some thousand more. VERBENA_TEST_MODE=long makes a million."""
    is_long = os.environ.get("VERBENA_TEST_MODE") == "long"
    by_wire = variables.get("VERBENA_PATH") == "wire"
    connections = 333_334 if is_long else 2_000 if by_wire else 10_000
    words = [program, str(connections), "3", str(library.free_service("tcp"))]
    done = subprocess.run(
        words, env=variables, capture_output=True, text=True,
        timeout=3600 if is_long else 3 * SECONDS, check=False)
    shown = re.findall(r"^(\w+) (\d): \d+ connections, (\d+) KiB, (\d+) descriptors$",
                       done.stdout, re.MULTILINE)
    held = {(role, time): (int(kib), int(fds)) for role, time, kib, fds in shown}
    if done.returncode != 0 or len(held) != 6:
        raise library.Failure(f"exit status {done.returncode}\n{done.stdout}{done.stderr}")
    for role in ("client", "server"):
        before, after = held[role, "1"], held[role, "2"]
        if after[1] > before[1] or after[0] - before[0] > GROWTH_KIB:
            raise library.Failure(f"{role}: KiB and descriptors {before}, then {after}")
    return ", ".join(f"{role} {held[role, '1'][0]} KiB, then {held[role, '2'][0]}"
                     for role in ("client", "server"))


def run_pyverbs(variables, folder):
    """The ten cases of rdma-core's test_rdmacm, which look at /sys/class/infiniband."""
    tests = pyverbs.unpack(pathlib.Path(folder))
    command = [
        pathlib.Path(variables["LD_LIBRARY_PATH"]).parent / "bin" / "verbena", "run", "--",
        pyverbs.PYTHON, tests / "run_tests.py", "--dev", "vrb_lo", "tests.test_rdmacm",
    ]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=3 * SECONDS, check=False
    )
    if done.returncode != 0 or "Ran 10 tests" not in done.stderr or "skipped" in done.stderr:
        raise library.Failure(done.stdout + done.stderr)


def named(case):
    return " ".join(with_port(case[1], "PORT"))


def run_all(report, variables, churn, silent):
    for case in PAIRS:
        if not shutil.which(case[0].split()[0]):
            raise SystemExit(f"{case[0].split()[0]} is not installed: run scripts/setup test")
        report.case(named(case), lambda case=case: run_pair(variables, case))
    report.case(named(ENDLESS), lambda: run_pair(variables, ENDLESS, True))
    report.case("nobody listens: REQ", lambda: run_alone(
        variables, f"rping -c -a {HOST} -p {library.free_service('tcp')} -C 1",
        "RDMA_CM_EVENT_REJECTED, error 8", SECONDS))
    report.case("nobody listens: SIDR_REQ", lambda: run_alone(
        variables, f"udaddy -s {HOST}", "RDMA_CM_EVENT_UNREACHABLE, error: 1", SECONDS))
    report.case("a port that is taken", lambda: run_port_taken(variables))
    report.case("a server that dies", lambda: run_dying_server(variables))
    if silent and variables.get("VERBENA_PATH") != "wire":
        report.case("a server that dies silent", lambda: run_silent_server(variables, silent))
    if silent:
        report.case("a server that lives silent", lambda: run_patient_client(variables, silent))
    if churn:
        report.case("connections leave nothing behind", lambda: run_churn(variables, churn))
    if not pyverbs.SUITE.is_dir():
        raise SystemExit("python3-pyverbs is not installed: run scripts/setup test")
    with tempfile.TemporaryDirectory() as folder:
        report.case("pyverbs test_rdmacm", lambda: run_pyverbs(variables, folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--library",
        dest="folder",
        default=os.environ.get("VERBENA_LIBRARY"),
        help="the folder that has librdmacm.so.1 (or set VERBENA_LIBRARY)",
    )
    parser.add_argument("--churn", metavar="PROGRAM", help="the program `churn` of this folder")
    parser.add_argument("--silent", metavar="PROGRAM", help="the program `silent` of this folder")
    library.add_mode(parser)
    parser.add_argument("--only", metavar="REGEX", help="run only the cases whose name matches")
    options = parser.parse_args()
    if not options.folder:
        parser.error("--library or VERBENA_LIBRARY is needed")
    report = library.Report(options.only)
    for mode in library.modes(options.mode):
        run_all(report, library.environment(options.folder, mode), options.churn, options.silent)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
