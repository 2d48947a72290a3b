# SPDX-License-Identifier: MIT
"""Runs the unit tests of the calling script, and tells of them in a line."""

import io
import re
import sys
import unittest


def main():
    output = io.StringIO()
    result = unittest.TextTestRunner(output, verbosity=2).run(
        unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    )
    bad = len({id(test) for test, _ in result.failures + result.errors})
    if bad:
        print(re.sub(r"^.* \.\.\. ok\n", "", output.getvalue(), flags=re.MULTILINE))
    for test, reason in result.skipped:
        print(f"SKIP {test}: {reason}")
    good = result.testsRun - bad - len(result.skipped)
    told = f", {len(result.skipped)} skipped" if result.skipped else ""
    print(f"{good} passed, {bad} failed{told}")
    return 1 if bad else 0
