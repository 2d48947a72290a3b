#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Adds up what scripts/test left in build/test-results: a table of the stages, every skip with its
reason, every failure, and as the last line `N passed, N failed` (and `, N skipped` when there are).

A test may hold many: gtest says so in its XML, a script in its last line. Whatever is not accounted
for counts as a failure: a stage that did not build, a test that crashed before it reported, a label
without tests.
"""

import argparse
import itertools
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from typing import NamedTuple

TOTALS = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$")
FAIL_LINE = re.compile(r"^FAIL (\S.*)$")
SKIP_LINE = re.compile(r"^SKIP (.+?): (\S.*)$")
# What gtest prints behind a test that failed, and before each thing that was wrong with it.
GTEST_FAILED = re.compile(r"^\[  FAILED  \] (\S+?),? .*\(\d+ ms\)$")
GTEST_FAILURE = re.compile(r"^(\S+:\d+): Failure$")
# What every stage is made of: without this a test that is no longer built would never be missed.
REQUIRED = {
    "release": ["check", "unit", "sim", "ring", "conformance", "chaos"],
    "asan": ["unit", "sim", "ring"],
    "tsan": ["unit", "ring"],  # a simulation is one thread
    "debug": ["unit", "sim", "ring"],
    "fuzz": ["fuzz"],
}


class Outcome:
    """What became of a test, a stage or everything."""

    def __init__(self):
        self.passed = 0
        self.failures = []
        self.skips = []

    def add(self, other):
        self.passed += other.passed
        self.failures += other.failures
        self.skips += other.skips

    def line(self):
        text = f"{self.passed} passed, {len(self.failures)} failed"
        return text + (f", {len(self.skips)} skipped" if self.skips else "")


class Test(NamedTuple):
    name: str
    status: str  # ctest's: run, fail, notrun, disabled
    output: str


def ctest_tests(path):
    """The tests of a JUnit file that ctest wrote."""
    found = []
    for case in xml.parse(path).getroot().iter("testcase"):
        output = case.findtext("system-out") or ""
        found.append(Test(case.get("name"), case.get("status"), output))
    return found


def built_labels(build):
    """Test to its labels, as ctest knows them: CMake 3.25 leaves them out of its JUnit file."""
    command = ["ctest", "--test-dir", str(build), "--show-only=json-v1"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {}
    for test in json.loads(listed)["tests"]:
        for prop in test.get("properties", []):
            if prop["name"] == "LABELS":
                found[test["name"]] = prop["value"]
    return found


def gtest_outcome(path, test):
    outcome = Outcome()
    for case in xml.parse(path).getroot().iter("testcase"):
        name = f"{test.name}: {case.get('classname')}.{case.get('name')}"
        failure = case.find("failure")
        skipped = case.find("skipped")
        if failure is not None:
            message = (failure.get("message") or "").strip().splitlines()
            outcome.failures.append((name, " ".join(message[:2]) or "failed"))
        elif skipped is not None:
            lines = (skipped.get("message") or "").strip().splitlines()
            outcome.skips.append((name, " ".join(lines[1:]) or "NO REASON GIVEN"))
        elif case.get("status") == "notrun":
            outcome.skips.append((name, "disabled in the source"))
        else:
            outcome.passed += 1
    return outcome


def script_outcome(test):
    """A test that closes with totals of its own, or None."""
    lines = [line.strip() for line in test.output.splitlines() if line.strip()]
    totals = next((m for line in reversed(lines[-3:]) if (m := TOTALS.match(line))), None)
    if not totals:
        return None
    outcome = Outcome()
    outcome.passed = int(totals.group(1))
    failures = [(test.name, match.group(1)) for line in lines if (match := FAIL_LINE.match(line))]
    failed = int(totals.group(2))
    outcome.failures = (failures + [(test.name, "see its output")] * failed)[:failed]
    reasons = [m.groups() for line in lines if (m := SKIP_LINE.match(line))]
    skipped = int(totals.group(3) or 0)
    outcome.skips = [(f"{test.name}: {what}", why) for what, why in reasons[:skipped]]
    if len(reasons) < skipped:
        missing = skipped - len(reasons)
        outcome.failures.append((test.name, f"skipped {missing} without saying why"))
    return outcome


def printed_failures(test):
    """The tests that a gtest without a report says failed, each with the first thing wrong."""
    found = []
    wrong = ""
    lines = test.output.splitlines()
    for i, line in enumerate(lines):
        if match := GTEST_FAILURE.match(line):
            told = itertools.takewhile(lambda said: said[:1] != "[", lines[i + 1 : i + 5])
            wrong = wrong or " ".join([match.group(1), *(said.strip() for said in told)])
        elif match := GTEST_FAILED.match(line):
            found.append((f"{test.name}: {match.group(1)}", wrong or "failed"))
            wrong = ""
    return found


def single_outcome(test):
    outcome = Outcome()
    if test.status == "run":
        outcome.passed = 1
    elif test.status == "fail" and (failures := printed_failures(test)):
        outcome.failures = failures
    elif test.status == "fail":
        lines = [line for line in test.output.splitlines() if line.strip()]
        outcome.failures.append((test.name, lines[-1] if lines else "failed without a word"))
    else:
        found = [
            m.groups() for line in test.output.splitlines() if (m := SKIP_LINE.match(line.strip()))
        ]
        if found:
            outcome.skips = [(f"{test.name}: {what}", why) for what, why in found]
        else:
            outcome.failures.append(
                (test.name, f"not run ({test.status}), and it does not say why")
            )
    return outcome


def test_outcome(test, gtest_folder):
    report = gtest_folder / f"{test.name}.xml"
    try:
        outcome = gtest_outcome(report, test) if report.exists() else script_outcome(test)
    except xml.ParseError:
        outcome = None  # cut off: it died while it wrote
    if outcome is None:
        return single_outcome(test)
    if test.status == "fail" and not outcome.failures:
        lines = [line for line in test.output.splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        outcome.failures.append((test.name, f"everything passed, but it ended badly: {last}"))
    return outcome


def stage_outcome(folder, stage):
    outcome = Outcome()
    junit = folder / "ctest.xml"
    if not junit.exists():
        outcome.failures.append(
            (stage, f"did not build or had no tests, see {folder / 'build.log'}")
        )
        return outcome
    tests = ctest_tests(junit)
    for test in tests:
        outcome.add(test_outcome(test, folder / "gtest"))
        (folder / f"{test.name}.log").write_text(test.output)
    known = built_labels(folder.parent.parent / stage)
    labels = {label for test in tests for label in known.get(test.name, [])}
    for label in REQUIRED[stage]:
        if label not in labels:
            outcome.failures.append((stage, f"no test has the label {label}"))
    return outcome


def grouped(skips):
    """The skips as lines; many of one test for one reason are one line (the logs name each)."""
    groups = {}
    for what, why in skips:
        *test, name = what.split(": ")
        groups.setdefault((": ".join(test), why), []).append(name)
    for (test, why), names in groups.items():
        if len(names) > 3:
            yield f"{test}: {len(names)} tests: {why}"
        else:
            yield from (f"{test}: {name}: {why}" for name in names)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="quick")
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("stages", nargs="+")
    options = parser.parse_args()

    total = Outcome()
    rows = []
    for stage in options.stages:
        outcome = stage_outcome(options.results / stage, stage)
        rows.append((stage, outcome.passed, len(outcome.failures), len(outcome.skips)))
        outcome.skips = [(f"{stage}: {what}", why) for what, why in outcome.skips]
        outcome.failures = [(f"{stage}: {what}", why) for what, why in outcome.failures]
        total.add(outcome)

    print(f"\n{'stage':<10}{'passed':>8}{'failed':>8}{'skipped':>9}")
    for stage, passed, failed, skipped in rows:
        print(f"{stage:<10}{passed:>8}{failed:>8}{skipped:>9}")
    minutes, seconds = divmod(options.seconds, 60)
    print(f"({options.mode}, {minutes} min {seconds} s; outputs are in {options.results})")
    if total.skips:
        print("\nskipped, and why:")
        for line in grouped(total.skips):
            print(f"  {line}")
    if total.failures:
        print("\nfailed:")
        for what, why in total.failures:
            print(f"  {what}: {why}")
    print()
    print(total.line())
    return 1 if total.failures or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
