#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The demo, quickly: files of awkward sizes arrive while their client is stopped, wrong input is
refused in words, and nobody is left behind, or stopped.

Usage: run_demo.py BUILD_FOLDER. Prints what fails, and closes with `N passed, N failed`.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from harness import Verbena

PIECE = 1 << 20
STOPPED_ROW = re.compile(r"the client meanwhile +stopped \(SIGSTOP\) +0\.0 ms of CPU")
TOOK_PART_ROW = re.compile(
    r"the client meanwhile +took part \(was not stopped\) +[\d.]+ ms of CPU")
RIGHT_ROW = re.compile(r"its memory afterwards +XXH64 [0-9a-f]{16} +right")


def files(verbena, scratch):
    for size in (0, 1, 7, 4096, PIECE - 1, PIECE, PIECE + 1, 33 * PIECE + 12345):
        path = scratch / f"{size} bytes of data"
        path.write_bytes(os.urandom(size))
        result = verbena("demo", "--only-write", path)
        verbena.check(f"{size} bytes arrive", result.returncode == 0, result)
        pieces = -(-size // PIECE)
        verbena.check(f"{size} bytes in {pieces} pieces",
                      f"in {pieces} piece" in result.stdout and RIGHT_ROW.search(result.stdout),
                      result)
        verbena.check(f"{size} bytes arrive at a stopped client",
                      is_stopped_throughout(result.stdout), result)
    odd = scratch / "-o"
    odd.write_bytes(b"data")
    result = verbena("demo", "--only-write", "--", "-o", cwd=scratch)
    verbena.check("a name like an option", result.returncode == 0, result)


def is_stopped_throughout(output):
    return ("client  is stopped by SIGSTOP while the data comes" in output
            and "has to take part" not in output and STOPPED_ROW.search(output))


def ways(verbena):
    """By the peer's memory without adoption; and by the ring, which needs the client."""
    size = 20 * PIECE + 5
    result = verbena("demo", "--only-write", "--bytes", size,
                     environment={"VERBENA_ADOPT": "never"})
    verbena.check("without adoption: stopped",
                  result.returncode == 0 and is_stopped_throughout(result.stdout), result)
    for size in (0, 1, size):
        result = verbena("demo", "--only-write", "--bytes", size,
                         environment={"VERBENA_PATH": "ring"})
        verbena.check(f"{size} bytes by the ring arrive",
                      result.returncode == 0 and RIGHT_ROW.search(result.stdout), result)
        verbena.check("by the ring the client has to take part, and that is said",
                      "it has to take part" in result.stdout
                      and TOOK_PART_ROW.search(result.stdout)
                      and "stopped (SIGSTOP)" not in result.stdout, result)


def benches(verbena):
    result = verbena("demo", "--bytes", 5_000_000, timeout=240)
    verbena.check("the whole demo", result.returncode == 0, result)
    for row in (r"ib_write_bw +64 KiB a WRITE +[\d.]+ [MG]B/s",
                r"ib_write_lat +2 bytes a WRITE, one way +[\d.]+ us",
                r"ibv_rc_pingpong +4 KiB by SEND and back +[\d.]+ us"):
        verbena.check(row, re.search(row, result.stdout), result)
    verbena.check("no colours into a file", "\033" not in result.stdout, result)


def wrong_input(verbena, scratch):
    for what in (scratch / "missing", scratch, "/dev/null"):
        result = verbena("demo", what)
        verbena.check(f"{what} is refused", result.returncode == 1 and str(what) in result.stderr,
                      result)
    result = verbena("demo", "--listen", "--connect", "localhost")
    verbena.check("not both ends", result.returncode == 2, result)
    result = verbena("demo", "--connect", "127.0.0.1", "--port", "1")
    verbena.check("nobody listens, and that is said",
                  result.returncode == 1 and "REJECTED" in result.stderr, result)
    result = verbena("demo", "one", "two")
    verbena.check("one file only", result.returncode == 2, result)
    pair = str(verbena.build / "bin/verbena-write-to-client")
    for words in ([], ["neither"], ["client"], ["server", "-p", "99999"],
                  ["server", "-b", "203.0.113.1"], ["client", "-p", "1", "127.0.0.1"],
                  ["server", str(scratch)], ["server", "-w", "x"]):
        result = verbena("run", pair, *words)
        verbena.check(f"{words} is refused", result.returncode in (1, 2) and result.stderr, result)


def deaths(verbena):
    """Whichever dies, the other ends, and says why."""
    for victim in ("server", "client"):
        for _ in range(5):
            survivor, errors, seconds = kill_one(verbena, victim)
            if survivor.returncode != 0:
                break  # and not too late: everything was written before the kill
        verbena.check(f"death of the {victim} is noticed",
                      survivor.returncode == 1 and "write-to-client:" in errors,
                      f"status {survivor.returncode} after {seconds:.0f} s: {errors}")


def deaths_of_the_demo(verbena):
    """Whoever ends while the client is stopped: nobody is left, and none of them stopped."""
    for victim, how in (("demo", signal.SIGINT), ("demo", signal.SIGTERM), ("demo", signal.SIGKILL),
                        ("server", signal.SIGKILL), ("client", signal.SIGKILL)):
        demo, server, client = demo_with_stopped_client(verbena)
        doomed = dict(demo=demo.pid, server=server, client=client)[victim]
        os.kill(doomed, how)
        try:
            _, errors = demo.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            demo.kill()
            demo.communicate()
            errors = "it hangs"
        if victim != "demo":
            verbena.check(f"the demo says that its {victim} died",
                          demo.returncode == 1 and "verbena demo:" in errors, errors)
        deadline = time.monotonic() + 10
        while (state_of(server) or state_of(client)) and time.monotonic() < deadline:
            time.sleep(0.02)
        verbena.check(f"nobody is left after {how.name} to the {victim}",
                      not state_of(server) and not state_of(client),
                      f"server {state_of(server)}, client {state_of(client)}")


def demo_with_stopped_client(verbena):
    """A demo, and the numbers of its server and client. By the ring, so that nothing moves while
    the client is stopped: there is time to look."""
    demo = subprocess.Popen(
        [verbena.program, "demo", "--only-write", "--bytes", str(300 * PIECE)],
        env=dict(verbena.environment, VERBENA_PATH="ring"), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for line in demo.stdout:
        if "is stopped by SIGSTOP" in line:
            break
    with open(f"/proc/{demo.pid}/task/{demo.pid}/children", encoding="ascii") as children:
        server, client = sorted(map(int, children.read().split()), key=start_time_of)
    verbena.check("the client is stopped", state_of(client) == "T", state_of(client))
    return demo, server, client


def stat_of(process):
    """The fields of /proc/PID/stat from the state on; none where there is no such process."""
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf8")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def state_of(process):
    """Its letter; nothing for one that is gone, or that only waits to be reaped."""
    fields = stat_of(process)
    return fields[0] if fields and fields[0] not in "ZX" else ""


def start_time_of(process):
    return (int(stat_of(process)[19]), process)


def kill_one(verbena, victim):
    """Kills one of a pair; the other, what it says, and how long it lived on."""
    server, client = start_pair(verbena)
    doomed, survivor = (server, client) if victim == "server" else (client, server)
    doomed.kill()
    doomed.wait()
    start = time.monotonic()
    try:
        _, errors = survivor.communicate(timeout=40)
    except subprocess.TimeoutExpired:
        survivor.kill()
        survivor.communicate()
        errors = "it hangs"
    doomed.communicate()
    return survivor, errors, time.monotonic() - start


def start_pair(verbena):
    """A server and a client with much to do."""
    pair = str(verbena.build / "bin/verbena-write-to-client")
    options = dict(env=verbena.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                   text=True)
    server = subprocess.Popen(
        [verbena.program, "run", pair, "server", "-q", "-n", str(1000 * PIECE), "-r", "2"],
        **options)
    for line in server.stderr:
        if match := re.match(r"port (\d+)", line):
            break
    client = subprocess.Popen(
        [verbena.program, "run", pair, "client", "-q", "-p", match.group(1)], **options)
    time.sleep(0.08)  # somewhere in the middle; wherever it is, it must end
    return server, client


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder).resolve()
        (scratch / "runtime").mkdir()
        verbena = Verbena(sys.argv[1], scratch / "runtime")
        files(verbena, scratch)
        wrong_input(verbena, scratch)
        ways(verbena)
        deaths(verbena)
        deaths_of_the_demo(verbena)
        benches(verbena)
    return verbena.summary()


if __name__ == "__main__":
    sys.exit(main())
