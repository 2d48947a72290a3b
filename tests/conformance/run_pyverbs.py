#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""rdma-core's own tests, as Debian packages them with python3-pyverbs, unmodified.

Every test runs or is skipped by its own decision. The run fails when one fails, errors, hangs or
crashes, and when fewer pass than were passing before (EXPECTED_PASSES). The skips are printed with
their reasons. Huge pages are reserved for the run where that is possible.

A hanging or crashing test ends its process; the rest goes on in a new one.
"""

import argparse
import collections
import gzip
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import conformance_page  # noqa: E402
import huge_pages  # noqa: E402
import library  # noqa: E402

SUITE = pathlib.Path("/usr/share/doc/rdma-core/tests")
PYTHON = "/usr/bin/python3"  # the one that the package is for
RUNNER = pathlib.Path(__file__).resolve().parent / "pyverbs_process.py"
SECONDS_A_TEST = 60
# Raise it when more pass: fewer is a failure, but for those that miss huge pages where none can be
# reserved.
EXPECTED_PASSES = 161
MISSES_HUGE_PAGES = "no huge pages"  # as the suite says it
MISSES_ROOT = "by root on Ethernet"
# They send Ethernet frames to addresses of their own making: they have a network to themselves.
RAW_PACKETS = re.compile(r"test_flow\.|test_rss_traffic\.|_raw_qp")
LOOPBACK = "vrb_lo"


def unpack(folder):
    """The suite as in rdma-core's source: Debian compresses the larger files."""
    tests = folder / "tests"
    tests.mkdir()
    for path in SUITE.iterdir():
        if path.suffix == ".gz":
            with gzip.open(path) as packed, open(tests / path.stem, "wb") as plain:
                shutil.copyfileobj(packed, plain)
        elif path.is_file():
            shutil.copy(path, tests)
    return tests


def under_verbena_run(variables):
    """What `verbena run` adds: rdma_cm's tests look for the network interface of the device in
    /sys.
    """
    folder = pathlib.Path(variables["LD_LIBRARY_PATH"])
    printed = subprocess.run(
        [folder.parent / "bin" / "verbena", "run", "--", "/usr/bin/env", "-0"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    return dict(line.split("=", 1) for line in printed.split("\0") if "=" in line)


class Suite:
    def __init__(self, tests, arguments, variables, prefix=()):
        self.tests = tests
        self.arguments = arguments
        self.variables = variables
        self.prefix = prefix

    def command(self, *more):
        python = [*self.prefix, PYTHON, "-X", "faulthandler"]
        return [*python, str(RUNNER), str(self.tests), *self.arguments, *more]

    def names(self):
        listed = subprocess.run(
            self.command("--list"),
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if listed.returncode:
            sys.exit(f"the suite does not load:\n{listed.stdout}{listed.stderr}")
        return listed.stdout.split()

    def run(self, names):
        """Yields (name, outcome, text) for each; starts again after a crash."""
        left = list(names)
        while left:
            last = None
            for name, outcome, text in self.run_once(left):
                if outcome == "start":
                    last = name
                    continue
                left.remove(name)
                last = None
                yield name, outcome, text
            if left and last is None:
                for name in left:
                    yield name, "error", self.noise
                return
            if left:
                left.remove(last)
                yield last, "error", "crashed or hung:\n" + self.noise

    def run_once(self, names):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder) / "results"
            wanted = pathlib.Path(folder) / "names"
            wanted.write_text("\n".join(names), encoding="utf-8")
            program = library.Program(
                self.command("--names", str(wanted), "--results", str(results)), self.variables
            )
            limit = SECONDS_A_TEST * len(names)
            library.wait_for(lambda: program.process.poll() is not None, limit, pause=0.05)
            program.kill()
            self.noise = program.output()[-8000:]
            lines = results.read_text(encoding="utf-8") if results.exists() else ""
            for line in lines.splitlines():
                yield tuple(json.loads(line))


def summary(skips):
    """A line a skip, as scripts/test reads it: it adds up those of one reason."""
    for reason, names in sorted(skips.items(), key=lambda item: -len(item[1])):
        for name in sorted(names):
            print(f"SKIP {name}: {' '.join(reason.split())}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", dest="folder", default=os.environ.get("VERBENA_LIBRARY"))
    parser.add_argument("--device", help="default: the first one")
    parser.add_argument("--verbose", action="store_true", help="tell what passes, too")
    parser.add_argument("--gid", default="0")
    library.add_mode(parser)
    parser.add_argument("--only", metavar="REGEX", help="run only the tests whose name matches")
    parser.add_argument(
        "--write-page", action="store_true", help="write what was found into docs/conformance.md"
    )
    options = parser.parse_args()
    if not options.folder:
        parser.error("--library or VERBENA_LIBRARY is needed")
    if not SUITE.is_dir():
        sys.exit(f"{SUITE} is not there: run scripts/setup test (package python3-pyverbs)")
    report = library.Report(options.only)
    found = conformance_page.Page()
    for mode in library.modes(options.mode):
        before = report.passed
        variables = library.environment(options.folder, mode)
        with huge_pages.reserved() as has_huge_pages:
            skips = run_all(
                report, options, under_verbena_run(variables), (found, mode or mode_of(variables))
            )
        passed = report.passed - before
        expected = EXPECTED_PASSES
        if not has_huge_pages:
            missed = sum(len(skips[text]) for text in skips if MISSES_HUGE_PAGES in text)
            expected -= missed
            print(f"without huge pages {missed} tests fewer are expected to pass: {expected}")
        unprivileged = sum(len(skips[text]) for text in skips if MISSES_ROOT in text)
        if unprivileged:
            expected -= unprivileged
            print(f"without a network of our own {unprivileged} fewer: {expected}")
        if not options.only and passed < expected:
            report.failed.append(f"only {passed} of {expected} pass")
    if not options.only:
        hold_against_page(report, options, found)
    return report.close()


def mode_of(variables):
    """That the environment asks for."""
    if variables.get("VERBENA_PATH") in ("wire", "ring"):
        return variables["VERBENA_PATH"]
    return "never" if variables.get("VERBENA_ADOPT") == "never" else "auto"


def hold_against_page(report, options, found):
    page = conformance_page.Page.read()
    modes = {mode for cells in found.cells.values() for mode in cells}
    if not options.write_page:
        for mode in sorted(modes):
            report.failed += page.differences(mode, found)
        return
    if report.failed:
        return  # what fails is not to be written down
    for name, cells in found.cells.items():
        page.cells.setdefault(name, {}).update(cells)
    page.cells = {name: cells for name, cells in page.cells.items() if name in found.cells}
    page.vendors = found.vendors
    query = ["dpkg-query", "-W", "-f", "${Version}", "python3-pyverbs"]
    page.version = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    page.write()


def run_all(report, options, variables, page_and_mode):
    page, mode = page_and_mode
    device = options.device or library.devices(variables)[0]
    skips = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        tests = unpack(pathlib.Path(folder))
        suite = Suite(tests, ["--dev", device, "--gid", options.gid], variables)
        names = [name for name in suite.names() if report.wants(name)]
        page.vendors = sum(not conformance_page.is_generic(name) for name in names)
        raw = [name for name in names if RAW_PACKETS.search(name)]
        alone = Suite(tests, ["--dev", LOOPBACK, "--gid", "0"], variables, library.in_own_network())
        others = suite.run([name for name in names if name not in raw])
        for name, outcome, text in itertools.chain(others, alone.run(raw)):
            if outcome == "skip":
                skips[text].append(name)
                page.note(mode, name, text)
                report.skipped += 1
            elif outcome == "ok":
                report.passed += 1
                page.note(mode, name, None)
                if options.verbose:
                    print(f"ok   {name}", flush=True)
            else:
                report.failed.append(name)
                print(f"FAIL {name}\n{text}", flush=True)
    summary(skips)
    return {
        text: [name for name in names if conformance_page.is_generic(name)]
        for text, names in skips.items()
    }


if __name__ == "__main__":
    sys.exit(main())
