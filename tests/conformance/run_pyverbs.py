#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""rdma-core's own tests, as Debian packages them with python3-pyverbs, unmodified.

Every test runs or is skipped by its own decision. The run fails when one fails, errors, hangs or
crashes, and when fewer pass than were passing before (EXPECTED_PASSES). The skips are printed with
their reasons.

A hanging or crashing test ends its process; the rest goes on in a new one.
"""

import argparse
import collections
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import library  # noqa: E402

SUITE = pathlib.Path("/usr/share/doc/rdma-core/tests")
PYTHON = "/usr/bin/python3"  # the one that the package is for
RUNNER = pathlib.Path(__file__).resolve().parent / "pyverbs_process.py"
SECONDS_A_TEST = 60
# Raise it when more pass: fewer is a failure.
EXPECTED_PASSES = 114


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


class Suite:
    def __init__(self, tests, arguments, variables):
        self.tests = tests
        self.arguments = arguments
        self.variables = variables

    def command(self, *more):
        return [PYTHON, "-X", "faulthandler", str(RUNNER), str(self.tests), *self.arguments, *more]

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
    parser.add_argument("--library", default=os.environ.get("VERBENA_LIBRARY"))
    parser.add_argument("--device", help="default: the first one")
    parser.add_argument("--gid", default="0")
    library.add_mode(parser)
    parser.add_argument("--only", metavar="REGEX", help="run only the tests whose name matches")
    options = parser.parse_args()
    if not options.library:
        parser.error("--library or VERBENA_LIBRARY is needed")
    if not SUITE.is_dir():
        sys.exit(f"{SUITE} is not there: run scripts/setup test (package python3-pyverbs)")
    report = library.Report(options.only)
    for mode in library.modes(options.mode):
        before = report.passed
        run_all(report, options, library.environment(options.library, mode))
        passed = report.passed - before
        if not options.only and passed < EXPECTED_PASSES:
            report.failed.append(f"only {passed} of {EXPECTED_PASSES} pass")
    return report.close()


def run_all(report, options, variables):
    device = options.device or library.devices(variables)[0]
    skips = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        tests = unpack(pathlib.Path(folder))
        suite = Suite(tests, ["--dev", device, "--gid", options.gid], variables)
        names = [name for name in suite.names() if report.wants(name)]
        for name, outcome, text in suite.run(names):
            if outcome == "skip":
                skips[text].append(name)
                report.skipped += 1
            elif outcome == "ok":
                report.passed += 1
                print(f"ok   {name}", flush=True)
            else:
                report.failed.append(name)
                print(f"FAIL {name}\n{text}", flush=True)
    summary(skips)


if __name__ == "__main__":
    sys.exit(main())
