# SPDX-License-Identifier: MIT
"""rsockets between two networks: Debian's programs of rsockets over IPv4 and IPv6, and programs of
ordinary sockets by librspreload.so.
"""

import filecmp
import os
import pathlib
import re
import tempfile

import library

SECONDS = 60
LONG_SECONDS = 600
STREAM_PORT = 7471
COPY_PORT = 7427
UDP_PORT = 7174
WEB_PORT = 7480
FILE_SIZE = 2_000_001
ADDRESSES = {"IPv4": "10.9.0.2", "IPv6": "fd00::2"}

STREAMS = [
    "rstream -S all -C 20 -I 5 -T v",
    "rstream -T a -S 65536 -C 100 -I 5",
    "rstream -T n -S 300000 -C 20 -I 5 -T v",
    "riostream -S all -C 20 -I 5 -T v",
    "riostream -T a -S 65536 -C 100 -I 5",
]
DATAGRAMS = ["udpong -T b -S 1000 -C 500", "udpong -T a -S 64 -C 500", "udpong -T e -S 1000 -C 100"]
# All that they do when nobody says what.
COMPLETE_STREAMS = ["rstream", "riostream"]


def service(port):
    return 0x106 << 16 | port


def is_bound(hosts, port):
    tables = (pathlib.Path(f"/proc/{hosts.other.pid}/net/{name}") for name in ("udp", "udp6"))
    return any(f":{port:04X} " in table.read_text(encoding="ascii") for table in tables)


def stream(hosts, words, kind, variables, seconds=SECONDS):
    family = ["-f", "ipv6"] if kind == "IPv6" else []
    server = [*words.split(), *family, "-b", ADDRESSES[kind]]
    client = [*words.split(), *family, "-s", ADDRESSES[kind]]
    told, _ = hosts.connect(server, client, service(STREAM_PORT), variables, seconds)
    if len(told.splitlines()) < 2:
        raise library.Failure("nothing was measured\n" + told)


def against_endless(hosts, words, is_ready, variables, body):
    """`body` gets what starts a client here; the server there goes on and on."""
    programs = []

    def run_client(client_words):
        client = library.Program(client_words, {**variables, "VERBENA_DEVICES": "va"})
        programs.append(client)
        library.wait_for(lambda: client.process.poll() is not None, SECONDS)
        if client.process.poll() != 0:
            raise library.Failure(library.told(client, programs[0]))
        return client.output()

    there = {**variables, "VERBENA_DEVICES": "vb"}
    programs.append(library.Program([*hosts.enter, *words], there))
    try:
        if not library.wait_for(is_ready, SECONDS):
            raise library.Failure("the server does not listen\n" + programs[0].output())
        body(run_client)
    finally:
        for program in programs:
            program.kill()


def datagrams(hosts, words, kind, variables):
    def body(run_client):
        told = run_client([*words.split(), "-s", ADDRESSES[kind]])
        rows = re.findall(r"^\w+ +\w+ +(\d\w*) ", told, re.MULTILINE)
        if not rows or any(row == "0" for row in rows):
            raise library.Failure("nothing came back\n" + told)

    against_endless(hosts, [*words.split(), "-b", ADDRESSES[kind]],
                    lambda: is_bound(hosts, UDP_PORT), variables, body)


def copy(hosts, variables):
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder) / "source", pathlib.Path(folder) / "target"
        source.write_bytes(os.urandom(FILE_SIZE))

        def body(run_client):
            run_client(["rcopy", str(source), f"{ADDRESSES['IPv4']}:{target}"])
            same = library.wait_for(lambda: filecmp.cmp(source, target, shallow=False), SECONDS)
            if not same:
                raise library.Failure("the copy differs")

        against_endless(hosts, ["rcopy"], lambda: hosts.serves(service(COPY_PORT)), variables, body)


def web(hosts, kind, variables):
    """Python's server and curl, by preload."""
    preload = pathlib.Path(variables["LD_LIBRARY_PATH"]) / "librspreload.so"
    variables = {**variables, "LD_PRELOAD": str(preload)}
    address = ADDRESSES[kind]
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder) / "page", pathlib.Path(folder) / "fetched"
        source.write_bytes(os.urandom(FILE_SIZE))
        url = f"http://{f'[{address}]' if ':' in address else address}:{WEB_PORT}/page"

        def body(run_client):
            run_client(["curl", "-sS", "-g", "-o", str(target), url])
            if not filecmp.cmp(source, target, shallow=False):
                raise library.Failure("what was fetched differs")

        against_endless(
            hosts, ["python3", "-m", "http.server", "--bind", address, "--directory", folder,
                    str(WEB_PORT)],
            lambda: hosts.serves(service(WEB_PORT)), variables, body)


def run_all(report, hosts, variables, is_long):
    for kind in ADDRESSES:
        for words in STREAMS:
            report.case(f"{words}, {kind}", lambda w=words: stream(hosts, w, kind, variables))
        for words in DATAGRAMS:
            report.case(f"{words}, {kind}", lambda w=words: datagrams(hosts, w, kind, variables))
        report.case(f"http.server and curl by preload, {kind}",
                    lambda: web(hosts, kind, variables))
    report.case("rcopy between two networks", lambda: copy(hosts, variables))
    if not is_long:
        report.skip("rstream and riostream as a whole", "VERBENA_TEST_MODE=long has them")
        return
    for words in COMPLETE_STREAMS:
        report.case(f"{words}, all of it",
                    lambda w=words: stream(hosts, w, "IPv4", variables, LONG_SECONDS))
