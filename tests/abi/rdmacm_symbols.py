#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Compares what a librdmacm.so.1 exports with the list of rdma-core 44, librdmacm-44.symbols, in
the form of symbols.py.
"""

import argparse
import pathlib
import re
import sys

import symbols

LISTED = pathlib.Path(__file__).with_name("librdmacm-44.symbols")
INSTALLED = pathlib.Path("/usr/lib/x86_64-linux-gnu/librdmacm.so.1")
NEEDED = symbols.ALLOWED_NEEDED | {"libibverbs.so.1"}


def is_44(library):
    return re.search(r"\.44\.\d+$", library.resolve().name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ours", metavar="LIBRARY")
    options = parser.parse_args()
    wanted = LISTED.read_text().splitlines()
    results = []
    if INSTALLED.exists() and is_44(INSTALLED):
        results.append(symbols.compare(str(INSTALLED), wanted, symbols.listing(INSTALLED)))
    results.append(symbols.compare(options.ours, wanted, symbols.listing(options.ours)))
    dynamic = symbols.readelf("--dynamic", options.ours)
    needed = set(re.findall(r"Shared library: \[(\S+)\]", dynamic))
    results.append(needed <= NEEDED and "Library soname: [librdmacm.so.1]" in dynamic)
    if not results[-1]:
        print(f"{options.ours}: needs {sorted(needed - NEEDED)}, or has another SONAME")
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
