#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Debian's programs of rsockets, unmodified, on this host: rstream, riostream, rcopy and udpong;
and programs of ordinary sockets by librspreload.so.
"""

import argparse
import errno
import filecmp
import os
import pathlib
import re
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
import library  # noqa: E402
from library import is_served  # noqa: E402

SECONDS = 60
HOST = "127.0.0.1"
PORT = 7471
PEER = str(pathlib.Path(__file__).with_name("stream_peer.py"))
SERVERS = str(pathlib.Path(__file__).with_name("servers.py"))
FORK_SAFE = {"RDMAV_FORK_SAFE": "1"}

# The server's words and the client's; both verify what they get where -T v stands.
STREAMS = [
    ("rstream -S all -C 20 -I 5 -T v", ""),
    ("rstream -T b -S 4096 -C 200 -I 5", ""),
    ("rstream -T a -S 65536 -C 100 -I 5", ""),
    ("rstream -T n -S 1000000 -C 20 -I 5 -T v", ""),
    ("rstream -T r -S 64 -C 100 -I 5", ""),
    ("rstream -f ip -S 64 -C 100 -I 5", ""),
    ("rstream -f name -S 64 -C 100 -I 5", ""),
    ("rstream -f ipv6 -S 64 -C 100 -I 5", "ipv6"),
    ("rstream -f gid -S all -C 20 -I 5 -T v", "gid"),
    ("rstream -f gid -S 64 -C 100 -I 5", "ipv6"),
    ("rstream -i 0 -S 32 -C 1000 -I 5 -T v", ""),
    ("rstream -B 1000 -S 5000 -C 100 -I 5 -T v", ""),
    ("rstream -k 1 -S 64 -C 100 -I 5", ""),
    ("riostream -S all -C 20 -I 5 -T v", ""),
    ("riostream -f gid -S 64 -C 100 -I 5", "gid"),
    ("riostream -T a -S 65536 -C 100 -I 5", ""),
    ("riostream -T b -S 4096 -C 100 -I 5", ""),
    ("riostream -T n -S 1000000 -C 20 -I 5 -T v", ""),
]
# All that they do when nobody says what: it takes long where waiting is by sleeping.
LONG_STREAMS = [("rstream", ""), ("riostream", "")]
# By ordinary sockets, of a server that forks.
FORKING_STREAMS = ["rstream -T f -S 5000 -C 100 -I 5", "rstream -T f -T n -S 64 -C 100 -I 5"]
# Sizes of datagrams, and how many; the server answers on and on.
DATAGRAMS = [
    "udpong -T b -S 64 -C 500",
    "udpong -T b -S 1000 -C 500",
    "udpong -T a -S 1000 -C 500",
    "udpong -T n -S 64 -C 500",
    "udpong -T e -S 1000 -C 500",
]
# Its server asks for datagrams without a pause, so that who has to share a core with others is
# seconds behind: half a second in all, or many minutes on a machine that has other work.
LONG_DATAGRAMS = ["udpong"]
LONG_SECONDS = 300
UDPONG_TESTS = 18  # when nobody says which: latency and bandwidth of nine sizes
UDP_PORT = 7174
COPY_PORT = 7427
FILE_SIZE = 5_000_001


def run_stream(variables, words, kind):
    host = {"ipv6": "::1", "gid": "::ffff:127.0.0.1"}.get(kind, HOST)
    # A server that forks listens by an ordinary socket, which its children hold a moment longer.
    library.wait_for(
        lambda: not is_served("tcp", PORT) and not library.is_listened_to(PORT), SECONDS)
    server = library.Program([*words.split(), "-b", host], variables)
    client = None
    try:
        ready = library.wait_for(
            lambda: is_served("tcp", PORT) or server.process.poll() is not None, SECONDS
        )
        if not ready or server.process.poll() is not None:
            raise library.Failure("the server does not listen\n" + server.output())
        client = library.Program([*words.split(), "-s", host], variables)
        both = (client, server)
        library.wait_for(lambda: all(one.process.poll() is not None for one in both), SECONDS)
        statuses = [one.process.poll() for one in both]
        if statuses != [0, 0]:
            raise library.Failure(f"exit statuses {statuses}\n" + library.told(client, server))
        if " usec/xfer" not in client.output() or len(client.output().splitlines()) < 2:
            raise library.Failure("nothing was measured\n" + library.told(client, server))
    finally:
        for program in (server, client):
            if program:
                program.kill()


def run_datagrams(variables, words):
    library.wait_for(lambda: not library.is_bound(UDP_PORT), SECONDS)
    server = library.Program([*words.split(), "-b", HOST], variables)
    client = None
    try:
        if not library.wait_for(lambda: library.is_bound(UDP_PORT), SECONDS):
            raise library.Failure("the server does not listen\n" + server.output())
        client = library.Program([*words.split(), "-s", HOST], variables)
        library.wait_for(lambda: client.process.poll() is not None, LONG_SECONDS)
        measured = re.findall(r"^(?:custom|\S+_(?:lat|bw)) +\S+ +(\d+)k? ", client.output(),
                              re.MULTILINE)
        expected = 1 if "-C" in words else UDPONG_TESTS
        if client.process.poll() != 0 or len(measured) != expected or "0" in measured:
            raise library.Failure(library.told(client, server))
    finally:
        for program in (server, client):
            if program:
                program.kill()


def run_copy(variables, folder):
    source = pathlib.Path(folder) / "source"
    copy = pathlib.Path(folder) / "copy"
    source.write_bytes(os.urandom(FILE_SIZE))
    library.wait_for(lambda: not is_served("tcp", COPY_PORT), SECONDS)
    server = library.Program(["rcopy"], variables)
    try:
        library.wait_for(lambda: is_served("tcp", COPY_PORT), SECONDS)
        client = library.Program(["rcopy", str(source), f"{HOST}:{copy}"], variables)
        library.wait_for(lambda: client.process.poll() is not None, SECONDS)
        client.kill()
        if client.process.returncode != 0 or not copy.exists():
            raise library.Failure(library.told(client, server))
        # The server closes its file a moment later.
        same = library.wait_for(lambda: filecmp.cmp(source, copy, shallow=False), SECONDS)
        if not same:
            raise library.Failure("the copy differs\n" + library.told(client, server))
    finally:
        server.kill()


def preload_of(folder):
    """librspreload.so of that folder. Where it is missing the loader only warns, and what runs is
    ordinary TCP."""
    preload = pathlib.Path(folder).resolve() / "librspreload.so"
    if not preload.exists():
        raise SystemExit(f"{preload} is missing: build the target rspreload_so first")
    return preload


def preloaded(variables):
    preload = preload_of(variables["LD_LIBRARY_PATH"])
    return {**variables, "LD_PRELOAD": str(preload), "PYTHONDONTWRITEBYTECODE": "1"}


def start_preloaded(words, variables, port):
    """A server by preload. That rdma_cm has its port shows that it is one of rsockets."""
    server = library.Program(words, preloaded(variables))
    if not library.wait_for(lambda: is_served("tcp", port), SECONDS):
        server.kill()
        raise library.Failure("the server does not listen by rdma_cm\n" + server.output())
    return server


def run_preloaded(variables, server_words, client_words, expected):
    port = library.free_port()
    server = start_preloaded([word.format(port=port) for word in server_words], variables, port)
    words = [word.format(port=port) for word in client_words]
    client = library.Program(words, preloaded(variables))
    try:
        library.wait_for(lambda: client.process.poll() is not None, SECONDS)
        if client.process.poll() != 0 or expected not in client.output():
            # Whoever died of a signal does so a moment after its peer hears of it.
            library.wait_for(lambda: server.process.poll() is not None, 1)
            statuses = [one.process.poll() for one in (client, server)]
            raise library.Failure(f"exit statuses {statuses}\n" + library.told(client, server))
        return client.output()
    finally:
        client.kill()
        server.kill()


def run_servers(variables, kind, clients):
    """Several clients at a time, of which each compares what comes back."""
    port = library.free_port()
    variables = preloaded(variables)
    if kind == "fork":
        variables.update(FORK_SAFE)  # then servers listen by TCP
    serves = library.is_listening if kind == "fork" else (lambda port: is_served("tcp", port))
    programs = [library.Program([SERVERS, kind, str(port)], variables)]
    try:
        if not library.wait_for(lambda: serves(port), SECONDS):
            raise library.Failure("the server does not listen\n" + programs[0].output())
        for _ in range(clients):
            programs.append(library.Program([PEER, "check", str(port), "2000000"], variables))
        library.wait_for(lambda: all(one.process.poll() is not None for one in programs[1:]),
                         SECONDS)
        done = [one.process.poll() == 0 and "by an rsocket" in one.output() for one in programs[1:]]
        if not all(done):
            raise library.Failure("\n".join(
                f"{one.arguments[0]}: {one.process.poll()}\n{one.output()}" for one in programs))
    finally:
        for program in programs:
            program.kill()


def run_forking_stream(variables, words):
    variables = {**preloaded(variables), **FORK_SAFE}
    # The children of the server before hold its port a moment longer.
    library.wait_for(
        lambda: not is_served("tcp", PORT) and not library.is_listened_to(PORT), SECONDS)
    server = library.Program([*words.split(), "-b", HOST], variables)
    client = None
    try:
        library.wait_for(lambda: library.is_listening(PORT), SECONDS)
        client = library.Program([*words.split(), "-s", HOST], variables)
        library.wait_for(lambda: client.process.poll() is not None, SECONDS)
        measured = re.search(r"^custom .*\d$", client.output(), re.MULTILINE)
        if client.process.poll() != 0 or not measured:
            raise library.Failure(library.told(client, server))
    finally:
        for program in (server, client):
            if program:
                program.kill()


def run_web(variables, folder):
    source = pathlib.Path(folder) / "page"
    copy = pathlib.Path(folder) / "fetched"
    source.write_bytes(os.urandom(FILE_SIZE))
    serve = ["python3", "-m", "http.server", "--bind", HOST, "--directory", folder, "{port}"]
    fetch = ["curl", "-sS", "-o", str(copy), "-w", "%{{size_download}}"]
    run_preloaded(variables, serve, [*fetch, "http://127.0.0.1:{port}/page"], str(FILE_SIZE))
    if not filecmp.cmp(source, copy, shallow=False):
        raise library.Failure("what was fetched differs")


def run_iperf(variables):
    """Its client asks for TCP_INFO, and shows what that says was sent again."""
    told = run_preloaded(
        variables, ["iperf3", "-s", "-1", "-B", HOST, "-p", "{port}"],
        ["iperf3", "-c", HOST, "-p", "{port}", "-n", "20M"], "iperf Done")
    if not re.search(r"bits/sec +0 +sender$", told, re.MULTILINE) or "getsockopt" in told:
        raise library.Failure(told)


def run_killed(variables):
    """Who waits for a peer that is killed hears of it."""
    port = library.free_port()
    server = start_preloaded([PEER, "echo", str(port)], variables, port)
    client = library.Program([PEER, "wait", str(port)], preloaded(variables))
    try:
        library.wait_for(lambda: "connected" in client.output(), SECONDS)
        server.kill()
        library.wait_for(lambda: client.process.poll() is not None, SECONDS)
        # Whichever comes first: the end of the connection, or a message that nobody answers.
        known = [f"error {number}\n" for number in (errno.ECONNRESET, errno.ETIMEDOUT)]
        if not any(text in client.output() for text in known):
            raise library.Failure(library.told(client, server))
    finally:
        client.kill()
        server.kill()


def run_all(report, variables, folder, options):
    for words, kind in STREAMS + ([] if options.brief else LONG_STREAMS):
        report.case(words, lambda words=words, kind=kind: run_stream(variables, words, kind))
    for words in DATAGRAMS + (LONG_DATAGRAMS if options.long else []):
        report.case(words, lambda words=words: run_datagrams(variables, words))
    report.case("rcopy", lambda: run_copy(variables, folder))
    report.case("every byte, both ways", lambda: run_preloaded(
        variables, [PEER, "echo", "{port}"], [PEER, "check", "{port}", "20000000"],
        "same 20000000"))
    for how in ("close", "exit"):
        report.case(f"what was sent before {how}", lambda how=how: run_preloaded(
            variables, [PEER, "talk", "{port}", "3000000", how],
            [PEER, "hear", "{port}", "3000000"], "heard 3000000"))
    for kind, clients in (("asyncio", 3), ("edges", 3), ("dup", 1), ("fork", 3)):
        report.case(f"a server by {kind}",
                    lambda kind=kind, clients=clients: run_servers(variables, kind, clients))
    for words in FORKING_STREAMS:
        report.case(words, lambda words=words: run_forking_stream(variables, words))
    report.case("a peer that is killed", lambda: run_killed(variables))
    report.case("http.server and curl", lambda: run_web(variables, folder))
    report.case("iperf3", lambda: run_iperf(variables))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--library",
        dest="folder",
        default=os.environ.get("VERBENA_LIBRARY"),
        help="the folder that has librdmacm.so.1 (or set VERBENA_LIBRARY)",
    )
    library.add_mode(parser)
    parser.add_argument("--only", metavar="REGEX", help="run only the cases whose name matches")
    parser.add_argument("--brief", action="store_true", help="without what takes long")
    parser.add_argument("--long", action="store_true",
                        help="also the complete udpong, which needs a machine of its own")
    options = parser.parse_args()
    if not options.folder:
        parser.error("--library or VERBENA_LIBRARY is needed")
    preload_of(options.folder)
    for name in ("rstream", "riostream", "rcopy", "udpong", "curl", "iperf3"):
        if not shutil.which(name):
            raise SystemExit(f"{name} is not installed: run scripts/setup test")
    report = library.Report(options.only)
    for mode in library.modes(options.mode):
        with tempfile.TemporaryDirectory() as folder:
            run_all(report, library.environment(options.folder, mode), folder, options)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
