# SPDX-License-Identifier: MIT
"""rsockets between our library and upstream's on the kernel's rxe, each end being the server once.
Upstream's datagrams need with_grh.so there.
"""

import re

from lab import library

SECONDS = 60
STREAM_PORT = 7471
UDP_PORT = 7174
# The server's words; the client has -s and the server's address besides.
STREAMS = [
    "rstream -S 5000 -C 20 -I 5",
    "rstream -S all -C 3 -I 2 -T v",
    "rstream -T b -S 4096 -C 20 -I 5",
    "rstream -T a -S 65536 -C 20 -I 3",
    "rstream -T a -S 1000 -C 20 -I 3",
    "rstream -T n -S 300000 -C 5 -I 2 -T v",
    "rstream -T r -S 64 -C 20 -I 3",
    "rstream -i 0 -S 32 -C 500 -I 3 -T v",
    "rstream -B 1000 -S 5000 -C 20 -I 3 -T v",
    "rstream -k 1 -S 64 -C 20 -I 3",
    "riostream -S all -C 3 -I 2 -T v",
    "riostream -T a -S 65536 -C 10 -I 3",
    "riostream -T n -S 300000 -C 5 -I 2 -T v",
]
# By ordinary sockets and preload, with a server that forks.
FORKING = ["rstream -T f -S 5000 -C 20 -I 3"]
UPSTREAM_PRELOAD = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"
# Not -T e, which waits for the answer to each: what the slow machine loses, it waits for for ever.
# An end sends by UDP until a thread of upstream's has the answer to its first datagram: on a busy
# machine that may be all of them.
ATTEMPTS = 10
DATAGRAMS = [
    "udpong -T b -S 64 -C 100",
    "udpong -T b -S 1000 -C 100",
    "udpong -T a -S 1000 -C 100",
    "udpong -T n -S 64 -C 100",
]


# With which rstream leaves after POLLHUP. Upstream's rpoll says that as soon as the end of the
# connection is known, even where data came before it that nobody has read yet; two ends of
# upstream's do that to each other about every other time. Ours says it when everything is read.
HUNG_UP = 16


def is_good(end, words, status):
    return status == 0 or (end.name == "rxe" and "rstream -T a" in words and status == HUNG_UP)


def run_stream(words, server, client, is_ipv6):
    library.wait_for(lambda: not server.serves("tcp", STREAM_PORT), SECONDS, 0.05)
    address = server.ipv6_address if is_ipv6 else server.address
    family = ["-f", "ipv6"] if is_ipv6 else []
    serving = server.start([*words.split(), *family, "-b", address])
    begun = None
    try:
        ready = library.wait_for(
            lambda: serving.status() is not None or server.serves("tcp", STREAM_PORT), SECONDS,
            0.05)
        if not ready or serving.status() is not None:
            raise library.Failure("the server does not listen\n" + serving.output())
        begun = client.start([*words.split(), *family, "-s", address])
        library.wait_for(lambda: begun.status() is not None, SECONDS)
        library.wait_for(lambda: serving.status() is not None,
                         10 if is_good(client, words, begun.status()) else 0.5)
        good = is_good(client, words, begun.status()) and is_good(server, words, serving.status())
        # Beneath the line of headings; of the end that did the last transfer.
        measured = max(len(one.output().splitlines()) for one in (begun, serving))
        if not good or measured < 2:
            raise library.Failure(
                f"client ({client.name}): {begun.status()}\n{begun.output()}\n"
                f"server ({server.name}): {serving.status()}\n{serving.output()}")
    finally:
        for program in (begun, serving):
            if program:
                program.kill()


def run_datagrams(build, words, server, client, is_ipv6):
    """The server answers on and on. The client counts what came back."""
    def start(end, *more):
        preload = f"LD_PRELOAD={build.resolve()}/lib/with_grh.so"
        helped = ["env", preload] if end.name == "rxe" else []
        return end.start([*helped, *words.split(), *more])

    address = server.ipv6_address if is_ipv6 else server.address
    library.wait_for(lambda: not server.is_bound(UDP_PORT), SECONDS, 0.05)
    serving = start(server, "-b", address)
    begun = None
    try:
        if not library.wait_for(lambda: server.is_bound(UDP_PORT), SECONDS, 0.05):
            raise library.Failure("the server does not listen\n" + serving.output())
        begun = start(client, "-s", address)
        library.wait_for(lambda: begun.status() is not None, SECONDS)
        measured = re.search(r"^custom +\d+ +(\d+)", begun.output(), re.MULTILINE)
        if begun.status() != 0 or not measured or int(measured[1]) == 0:
            raise library.Failure(
                f"client ({client.name}): {begun.status()}\n{begun.output()}\n"
                f"server ({server.name}): {serving.status()}\n{serving.output()}")
    finally:
        for program in (begun, serving):
            if program:
                program.kill()


def run_forking(build, words, server, client):
    """The connection begins as one of TCP, and becomes an rsocket in the child that serves it."""
    def start(end, *more):
        own = f"{build.resolve()}/lib/librspreload.so"
        preload = f"LD_PRELOAD={UPSTREAM_PRELOAD if end.name == 'rxe' else own}"
        return end.start(["env", preload, "RDMAV_FORK_SAFE=1", *words.split(), *more])

    library.wait_for(lambda: not server.is_listening(STREAM_PORT), SECONDS, 0.05)
    serving = start(server, "-b", server.address)
    begun = None
    try:
        if not library.wait_for(lambda: server.is_listening(STREAM_PORT), SECONDS, 0.05):
            raise library.Failure("the server does not listen\n" + serving.output())
        begun = start(client, "-s", server.address)
        library.wait_for(lambda: begun.status() is not None, SECONDS)
        if begun.status() != 0 or not re.search("^custom ", begun.output(), re.MULTILINE):
            raise library.Failure(
                f"client ({client.name}): {begun.status()}\n{begun.output()}\n"
                f"server ({server.name}): {serving.status()}\n{serving.output()}")
    finally:
        for program in (begun, serving):
            if program:
                program.kill()


def run_checked(bench, body, attempts=1):
    """What goes on by RoCEv2 is looked at, and both ends send some."""
    for attempt in range(attempts):
        before = bench.checker.counts.copy()
        body()
        sent = bench.look(before)
        if all(sent.values()):
            note = ", ".join(f"{count} frames of {name}" for name, count in sent.items())
            return note + (f", by UDP {attempt} times before" if attempt else "")
    raise library.Failure(f"not by RoCEv2: {sent}")


def run_all(report, bench, build):
    def run(words, is_ipv6, body, attempts=1):
        for server, client in bench.ends():
            report.case(f"rsockets, {server.name} serves: {words}" + " over IPv6" * is_ipv6,
                        lambda: run_checked(bench, lambda: body(server, client), attempts))

    for words, is_ipv6 in [(STREAMS[0], True), *((words, False) for words in STREAMS)]:
        run(words, is_ipv6, lambda *ends: run_stream(words, *ends, is_ipv6))
    for words, is_ipv6 in [(DATAGRAMS[0], True), *((words, False) for words in DATAGRAMS)]:
        run(words, is_ipv6, lambda *ends: run_datagrams(build, words, *ends, is_ipv6), ATTEMPTS)
    for words in FORKING:
        run(words, False, lambda *ends: run_forking(build, words, *ends))
