# SPDX-License-Identifier: MIT
"""docs/security.md names a test for each bug that other NICs have had: the tests are there."""

import re

from .tree import Finding

PAGE = "docs/security.md"
HEADING = "## Known bugs"
NAME = re.compile(r"`(\w+\.\w+)`")
TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
ABSENT = "not here:"  # and why


def known_bugs(tree):
    if PAGE not in tree.all_paths:
        return
    tests = {
        ".".join(match.groups())
        for path in tree.all_paths
        if path.endswith("_test.cc")
        for match in TEST.finditer(tree.text(path))
    }
    is_inside, rows = False, 0
    for number, line in enumerate(tree.lines(PAGE), 1):
        if line.startswith("## "):
            is_inside = line == HEADING
        if not is_inside or not line.startswith("|") or set(line) <= set("|- "):
            continue
        rows += 1
        named = NAME.findall(line)
        if rows > 1 and not named and ABSENT not in line:
            yield Finding(PAGE, number, "known-bug", "names no test of ours, and no reason")
        for name in named:
            if name not in tests:
                yield Finding(PAGE, number, "known-bug", f"there is no test {name}")
    if not rows:
        yield Finding(PAGE, 1, "known-bug", f"has no table behind {HEADING}")


CHECKS = [("known-bugs", known_bugs)]
