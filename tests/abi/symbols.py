#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Compares what a libibverbs.so.1 exports with the list of rdma-core 44, libibverbs-44.symbols.
Nothing else may be there but the one symbol of our own.

The list has a line for each version node, `NODE name [parent]`, and for each symbol,
`FUNC name@@node` (what new programs link against) or `FUNC name@node` (only for old ones). It was
written by `symbols.py --print` from Debian 12's library, and is compared with the installed one
wherever that is of version 44.
"""

import argparse
import pathlib
import re
import subprocess
import sys

LISTED = pathlib.Path(__file__).with_name("libibverbs-44.symbols")
INSTALLED = pathlib.Path("/usr/lib/x86_64-linux-gnu/libibverbs.so.1")
# What only ours has, for our own libverbena and librdmacm (src/base/contracts.h).
OWN = {
    "NODE VERBENA_PRIVATE_1",
    "OBJECT verbena_dv_table@@VERBENA_PRIVATE_1",
    "OBJECT verbena_gsi_table@@VERBENA_PRIVATE_1",
}
# Our own object may need no more: it lives in other people's processes.
ALLOWED_NEEDED = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libgcc_s.so.1"}


def readelf(*arguments):
    command = ["readelf", "--wide", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(library):
    """Lines `TYPE name@@node` of all exported symbols, without those that stand for a node."""
    for line in readelf("--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) < 8 or fields[6] in ("UND", "ABS") or fields[4] not in ("GLOBAL", "WEAK"):
            continue
        yield f"{fields[3]} {fields[7]}"


def nodes(library):
    """Lines `NODE name [parent]`, without the one that is the file's own name."""
    section = readelf("--version-info", library).split("Version definition section")[-1]
    section = section.split("Version needs section")[0]
    for match in re.finditer(r"Flags: (\S+)\s.*?Name: (\S+)((?:\n.*Parent \d+: \S+)*)", section):
        flags, name, parents = match.groups()
        if flags != "BASE":
            yield " ".join(["NODE", name, *re.findall(r"Parent \d+: (\S+)", parents)])


def listing(library):
    return sorted(set(nodes(library)) | set(symbols(library)))


def compare(what, wanted, got):
    """Prints every difference; true when there is none."""
    for line in sorted(set(wanted) - set(got)):
        print(f"{what}: lacks {line}")
    for line in sorted(set(got) - set(wanted)):
        print(f"{what}: has {line}, which is not in the list")
    return set(wanted) == set(got)


def check_counts(wanted):
    """The list itself: 75 default and 34 old public symbols, 71 private ones."""
    public = [line for line in wanted if "@IBVERBS_1." in line]
    default = [line for line in public if "@@" in line]
    private = [line for line in wanted if "@@IBVERBS_PRIVATE_34" in line]
    counts = (len(default), len(public) - len(default), len(private))
    if counts != (75, 34, 71):
        print(f"{LISTED.name}: counts {counts}, not (75, 34, 71)")
    return counts == (75, 34, 71)


def check_dynamic(library, sanitized):
    dynamic = readelf("--dynamic", library)
    good = True
    if "Library soname: [libibverbs.so.1]" not in dynamic:
        print(f"{library}: the SONAME is not libibverbs.so.1")
        good = False
    needed = set(re.findall(r"Shared library: \[(\S+)\]", dynamic))
    if not sanitized and not needed <= ALLOWED_NEEDED:
        print(f"{library}: needs {' '.join(sorted(needed - ALLOWED_NEEDED))}")
        good = False
    return good


def check_installed(wanted):
    """None when there is nothing to compare with."""
    if not INSTALLED.exists():
        print(f"SKIP installed library: {INSTALLED} is not there (package libibverbs1)")
        return None
    version = INSTALLED.resolve().name
    if not re.search(r"\.44\.\d+$", version):
        print(f"SKIP installed library: it is {version}, not of rdma-core 44")
        return None
    return compare(str(INSTALLED), wanted, listing(INSTALLED))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--print", action="store_true", help="write the list of LIBRARY")
    parser.add_argument("--sanitized", action="store_true", help="it needs a sanitizer's runtime")
    parser.add_argument("library", nargs="+", metavar="LIBRARY")
    options = parser.parse_args()
    if options.print:
        print("\n".join(listing(options.library[0])))
        return 0

    wanted = LISTED.read_text().splitlines()
    results = [check_counts(wanted), check_installed(wanted)]
    for library in options.library:
        if not pathlib.Path(library).exists():
            print(f"{library}: not built")
            results.append(False)
            continue
        results.append(compare(library, OWN.union(wanted), listing(library)))
        results.append(check_dynamic(library, options.sanitized))
    failed, skipped = results.count(False), results.count(None)
    print(f"{results.count(True)} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
