#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Loads Debian's RDMA programs and libraries over a libibverbs.so.1 of ours.

All symbols are bound at once (ldd -r, LD_BIND_NOW): a name or version that is missing shows here,
not in the middle of somebody's run. Some are also started, so that constructors run.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
# Path and the Debian package that it comes from.
LOADED = [
    (f"{LIBRARIES}/libmlx5.so.1", "ibverbs-providers"),
    (f"{LIBRARIES}/libefa.so.1", "ibverbs-providers"),
    (f"{LIBRARIES}/libmlx4.so.1", "ibverbs-providers"),
    (f"{LIBRARIES}/libmana.so.1", "ibverbs-providers"),
    (f"{LIBRARIES}/librdmacm.so.1", "librdmacm1"),
    (f"{LIBRARIES}/libibumad.so.3", "libibumad3"),
    *((f"/usr/bin/ib_{name}", "perftest") for name in (
        "atomic_bw", "atomic_lat", "read_bw", "read_lat", "send_bw", "send_lat",
        "write_bw", "write_lat")),
    *((f"/usr/bin/raw_ethernet_{name}", "perftest") for name in ("bw", "lat", "burst_lat")),
    *((f"/usr/bin/ibv_{name}", "ibverbs-utils") for name in (
        "devices", "devinfo", "asyncwatch", "rc_pingpong", "uc_pingpong", "ud_pingpong",
        "srq_pingpong", "xsrq_pingpong")),
    *((f"/usr/bin/{name}", "rdmacm-utils") for name in (
        "rping", "udaddy", "ucmatose", "mckey", "rstream", "riostream", "rdma_server",
        "rdma_client", "rdma_xserver", "cmtime")),
]
STANDS_ALONE = {f"{LIBRARIES}/libibumad.so.3"}
# What our librdmacm.so.1 does not have yet.
RSOCKETS = re.compile(r"undefined symbol: r(?!dma_|poll,)\w+, version RDMACM_1\.0")
# Command, what its output must contain, package.
STARTED = [
    (["/usr/bin/ibv_devices"], "device", "ibverbs-utils"),
    (["/usr/bin/ib_write_bw", "--version"], "Version", "perftest"),
    (["/usr/bin/ib_send_lat", "--help"], "Usage", "perftest"),
    (["/usr/bin/python3", "-c", "import pyverbs.device, pyverbs.providers.mlx5.mlx5dv as m;"
      "print(len(pyverbs.device.get_device_list()), 'devices')"], "devices", "python3-pyverbs"),
]


class Loader:
    def __init__(self, library):
        self.library = pathlib.Path(library).resolve()
        self.folder = pathlib.Path(library).resolve().parent
        self.environment = dict(
            os.environ, LD_LIBRARY_PATH=str(self.library.parent), LD_BIND_NOW="1", LC_ALL="C"
        )

    def run(self, command):
        result = subprocess.run(
            command, env=self.environment, timeout=60, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )
        return result.returncode, result.stdout

    def uses_ours(self, output):
        """True when ldd found our file under the name."""
        found = re.search(r"libibverbs\.so\.1 => (\S+)", output)
        return found and pathlib.Path(found[1]).resolve() == self.library

    def has_rdmacm(self):
        return (self.folder / "librdmacm.so.1").exists()

    def loads(self, path):
        _, output = self.run(["ldd", "-r", path])
        problems = [
            line.strip() for line in output.splitlines()
            if "undefined symbol" in line or "not found" in line or "symbol lookup" in line
        ]
        missing = [line for line in problems if RSOCKETS.search(line)]
        if missing and self.has_rdmacm():
            print(f"SKIP {len(missing)} functions of rsockets for {path}: they are not built yet")
            problems = [line for line in problems if line not in missing]
        if path not in STANDS_ALONE and not self.uses_ours(output):
            problems.append("not bound to our libibverbs.so.1")
        for problem in problems:
            print(f"{path}: {problem}")
        return not problems

    def starts(self, command, expected):
        status, output = self.run(command)
        # perftest's --help and --version exit with 1.
        if status in (0, 1) and expected in output and "symbol" not in output:
            return True
        print(f"{' '.join(command)}: status {status}: {output.strip()[-400:]}")
        return False


def is_there(path, package):
    if pathlib.Path(path).exists():
        return True
    print(f"{path}: not there; it is in the package {package} (scripts/setup)")
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sanitized", action="store_true", help="it needs a sanitizer's runtime")
    parser.add_argument("library", nargs="+", metavar="LIBRARY")
    options = parser.parse_args()
    if options.sanitized:
        print("SKIP loading: programs without a sanitizer cannot load a library that has one")
        return 77
    results = []
    for library in options.library:
        loader = Loader(library)
        for path, package in LOADED:
            results.append(is_there(path, package) and loader.loads(path))
        for command, expected, package in STARTED:
            results.append(is_there(command[0], package) and loader.starts(command, expected))
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
