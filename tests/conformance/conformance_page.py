# SPDX-License-Identifier: MIT
"""docs/conformance.md: what rdma-core's tests say of this NIC, written by their run and held
against it.

A column for each way to the peer. A cell is "passes", or the letter of the reason why the test was
skipped; the reasons stand below the table.
"""

import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
COLUMNS = {
    "auto": "the peer's memory",
    "never": "the same, nothing adopted",
    "ring": "the ring",
    "wire": "RoCEv2",
}
PASSES = "passes"
UNKNOWN = "?"
# Tests of one vendor's adapters, which look for such a device.
OF_VENDORS = re.compile(r"tests\.test_(mlx5|efa)")
# What depends on the machine and on who runs it: there a test may be skipped that passed
# elsewhere, and the other way round.
OF_THE_HOST = re.compile(r"huge pages|dmabuf|cuda|root|multicast|net interface|module", re.I)

HEAD = """# Conformance

*rdma-core's own tests, as Debian packages them with python3-pyverbs {version}, unmodified. This
page is written by their run (`tests/conformance/run_pyverbs.py --mode all --write-page`), and each
run of `scripts/test` holds it against what it finds. Do not edit it.*

The suite has tests of two vendors' adapters, which look for such a device and are not listed here:
{vendors} in all. The others:

"""


def is_generic(name):
    return not OF_VENDORS.match(name)


def short(name):
    return name.removeprefix("tests.")


class Page:
    """`cells[test][mode]`: PASSES, or the reason of a skip."""

    def __init__(self):
        self.cells = {}
        self.vendors = 0
        self.version = ""

    @staticmethod
    def read():
        page = Page()
        if not PAGE.exists():
            return page
        text = PAGE.read_text(encoding="utf-8")
        reasons = dict(re.findall(r"^\* \*\*(\w+)\*\*: (.*)$", text, re.M))
        modes = list(COLUMNS)
        for name, row in re.findall(r"^\| `([\w.]+)` \|(.*)\|$", text, re.M):
            values = [cell.strip() for cell in row.split("|")]
            cells = {}
            for mode, value in zip(modes, values, strict=True):
                if value != UNKNOWN:
                    cells[mode] = PASSES if value == PASSES else reasons[value]
            page.cells[name] = cells
        return page

    def note(self, mode, name, reason):
        """`reason`: of a skip; none when it passed."""
        if not is_generic(name):
            return
        text = " ".join(reason.split()) if reason else PASSES
        self.cells.setdefault(short(name), {})[mode] = text

    def text(self):
        letters = {}
        rows = []
        for name in sorted(self.cells):
            row = []
            for mode in COLUMNS:
                value = self.cells[name].get(mode, UNKNOWN)
                if value not in (PASSES, UNKNOWN):
                    value = letters.setdefault(value, letter(len(letters)))
                row.append(value)
            rows.append(f"| `{name}` | " + " | ".join(row) + " |")
        out = [HEAD.format(version=self.version, vendors=self.vendors)]
        out.append("| | " + " | ".join(COLUMNS.values()) + " |\n")
        out.append("|---" * (len(COLUMNS) + 1) + "|\n")
        out.append(f"| passed of {len(self.cells)} |" + "".join(self.count(m) for m in COLUMNS))
        out.append("\n\n## Why tests are skipped\n\n")
        out += [f"* **{mark}**: {reason}\n" for reason, mark in letters.items()]
        out.append("\n## Each test\n\n| | " + " | ".join(COLUMNS.values()) + " |\n")
        out.append("|---" * (len(COLUMNS) + 1) + "|\n")
        out.append("\n".join(rows) + "\n")
        return "".join(out)

    def count(self, mode):
        return f" {sum(cells.get(mode) == PASSES for cells in self.cells.values())} |"

    def write(self):
        PAGE.write_text(self.text(), encoding="utf-8")

    def differences(self, mode, found):
        """What this page says of a mode and the run found otherwise, as lines for a person."""
        for name in sorted(set(self.cells) | set(found.cells)):
            says = self.cells.get(name, {}).get(mode, UNKNOWN)
            is_so = found.cells.get(name, {}).get(mode, UNKNOWN)
            if says == is_so or OF_THE_HOST.search(says) or OF_THE_HOST.search(is_so):
                continue
            yield f"docs/conformance.md says of {name} ({mode}): {says}; now: {is_so}"


def letter(place):
    """a, b, ..., z, aa, ab, ..."""
    first, last = divmod(place, 26)
    return (chr(ord("a") + first - 1) if first else "") + chr(ord("a") + last)
