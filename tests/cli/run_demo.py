#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The demo, quickly: files of awkward sizes arrive, wrong input is refused in words.

Usage: run_demo.py BUILD_FOLDER. Prints what fails, and closes with `N passed, N failed`.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from harness import Verbena

PIECE = 1 << 20


def files(verbena, scratch):
    for size in (0, 1, 7, 4096, PIECE - 1, PIECE, PIECE + 1, 33 * PIECE + 12345):
        path = scratch / f"{size} bytes of data"
        path.write_bytes(os.urandom(size))
        result = verbena("demo", "--only-write", path)
        verbena.check(f"{size} bytes arrive", result.returncode == 0, result)
        pieces = max(1, -(-size // PIECE))
        verbena.check(f"{size} bytes in {pieces} pieces",
                      f"in {pieces} piece" in result.stdout and "right" in result.stdout, result)
    odd = scratch / "-o"
    odd.write_bytes(b"data")
    result = verbena("demo", "--only-write", "--", "-o", cwd=scratch)
    verbena.check("a name like an option", result.returncode == 0, result)


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
    result = verbena("demo", "one", "two")
    verbena.check("one file only", result.returncode == 2, result)
    pair = str(verbena.build / "bin/verbena-write-to-client")
    for words in ([], ["neither"], ["client"], ["server", "-p", "99999"], ["server", "-x", "9x"],
                  ["server", "-d", "none"], ["client", "-p", "1", "127.0.0.1"],
                  ["server", "-x", "250"], ["server", str(scratch)]):
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
        deaths(verbena)
        benches(verbena)
    return verbena.summary()


if __name__ == "__main__":
    sys.exit(main())
