# SPDX-License-Identifier: MIT
"""Huge pages for the time of a run: the tests that use them skip themselves where none is reserved.

A process of its own reserves them and gives them back when the run has ended, however it ended.
Runs may overlap: each adds its pages and takes them away again.
"""

import contextlib
import fcntl
import os
import pathlib
import subprocess
import sys

NUMBER = pathlib.Path("/proc/sys/vm/nr_hugepages")
MEMINFO = pathlib.Path("/proc/meminfo")
NEEDED = 8  # two ends of a connection, each with one or two of them


class Unavailable(Exception):
    """Why there are none."""


def available():
    for line in MEMINFO.read_text(encoding="ascii").splitlines():
        if line.startswith("HugePages_Free:"):
            return int(line.split()[1])
    return 0


def change(by):
    """Adds to the number of reserved pages, and returns by how much it changed. The lock is among
    those who do this here: the kernel knows only the sum.
    """
    with open(NUMBER, "r+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = int(file.read())
        file.seek(0)
        file.write(f"{max(0, before + by)}\n")
        file.flush()
        file.seek(0)
        return int(file.read()) - before


def keep(count):
    """Reserves, says how many, and gives them back at the end of its input."""
    got = change(count)
    try:
        if got < count:
            raise Unavailable(f"the kernel found memory for {got} of {count} huge pages")
        print(got, flush=True)
        sys.stdin.buffer.read()
    finally:
        change(-got)


def why_not():
    """The reason why this process may not reserve any; empty when it may."""
    if not NUMBER.exists():
        return f"there is no {NUMBER}"
    if os.geteuid() != 0:
        return "only root can reserve huge pages"
    if not os.access(NUMBER, os.W_OK):
        return f"{NUMBER} is read-only"
    return ""


@contextlib.contextmanager
def reserved():
    """While it lasts there are some; prints why, where there are not. Gives whether there are.

    They come on top of those that are free: these may be of another run, which takes them along.
    """
    reason = why_not()
    if reason:
        # Somebody else may have reserved some.
        has_them = available() >= NEEDED
        if not has_them:
            print(f"no huge pages: {reason}", flush=True)
        yield has_them
        return
    # A session of its own: what ends the whole run does not end it before it has given them back.
    keeper = subprocess.Popen(
        [sys.executable, __file__, str(NEEDED)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    has_them = bool(keeper.stdout.readline())
    try:
        if has_them:
            print(f"huge pages: {NEEDED} reserved for this run", flush=True)
        else:
            print(f"no huge pages: {keeper.stderr.read().strip()}", flush=True)
        yield has_them
    finally:
        keeper.stdin.close()
        keeper.wait(timeout=60)


if __name__ == "__main__":
    try:
        keep(int(sys.argv[1]))
    except (OSError, Unavailable) as error:
        sys.exit(str(error))
