# SPDX-License-Identifier: MIT
"""The shared objects of a build folder export exactly what their version scripts list."""

import pathlib
import re
import subprocess

from .tree import Finding


def promised(script):
    """(name, node) pairs that a version script makes global. A name that the code itself puts into
    a node (.symver) cannot stand there; a comment in the node, /* symver: NAME ... */, promises it.
    """
    text = re.sub(
        r"/\*\s*symver:(.*?)\*/",
        lambda names: names[1].replace("*", " ") + ";",
        script.read_text(),
        flags=re.DOTALL,
    )
    text = re.sub(r"/\*.*?\*/|#[^\n]*|//[^\n]*", " ", text, flags=re.DOTALL)
    pairs = set()
    for node, body in re.findall(r"([\w.]*)\s*\{(.*?)\}", text, re.DOTALL):
        section = "global"
        for word in re.split(r"[;\s]+", body.replace(":", ": ")):
            if word in ("global:", "local:"):
                section = word[:-1]
            elif word and section == "global":
                pairs.add((word, node))
    return pairs


def exported(shared):
    """(name, node) pairs that the shared object defines."""
    command = ["nm", "-D", "--defined-only", "--with-symbol-versions", str(shared)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    pairs = set()
    for line in output.splitlines():
        kind, name = line.split()[-2:]
        if kind != "A":  # the version nodes themselves
            name, _, node = name.partition("@")
            pairs.add((name, node.lstrip("@")))
    return pairs


def check(tree, build):
    build = pathlib.Path(build)
    listing = build / "exports.txt"
    if not listing.exists():
        yield Finding(str(build), 1, "exports", "no exports.txt here: configure and build it first")
        return
    for line in listing.read_text().splitlines():
        name, script = line.split(" ", 1)
        shared, script = build / name, pathlib.Path(script)
        where = (
            str(script.relative_to(tree.root)) if script.is_relative_to(tree.root) else str(script)
        )
        if not shared.exists():
            yield Finding(where, 1, "exports", f"{name} is not built in {build}")
            continue
        wanted, got = promised(script), exported(shared)
        for symbol, node in sorted(wanted - got):
            yield Finding(
                where,
                1,
                "exports",
                f"{name} does not export {symbol}@{node}, which its version script lists",
            )
        for symbol, node in sorted(got - wanted):
            yield Finding(
                where,
                1,
                "exports",
                f"{name} exports {symbol}@{node}, which its version script does not list",
            )
