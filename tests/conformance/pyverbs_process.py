#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Runs tests of rdma-core's suite in this process: started by run_pyverbs.py.

    pyverbs_process.py FOLDER --dev NAME --gid N (--list | --names FILE --results FILE)

Loads the suite as its run_tests.py does. A line of JSON a step goes to the results: name, outcome,
text. A test that takes too long ends the process with a trace of where it hangs.
"""

import faulthandler
import json
import os
import sys
import unittest
from importlib.machinery import SourceFileLoader

sys.dont_write_bytecode = True
SECONDS_A_TEST = 60


def take(option):
    """The value of our own option, which the suite must not see."""
    place = sys.argv.index(option)
    value = sys.argv[place + 1]
    del sys.argv[place : place + 2]
    return value


class Result(unittest.TestResult):
    def __init__(self, to):
        super().__init__()
        self.to = to

    def tell(self, test, outcome, text=""):
        self.to.write(json.dumps([test.id(), outcome, text]) + "\n")
        self.to.flush()

    def startTest(self, test):
        super().startTest(test)
        faulthandler.dump_traceback_later(SECONDS_A_TEST, exit=True)
        self.tell(test, "start")

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def addSuccess(self, test):
        self.tell(test, "ok")

    def addSkip(self, test, reason):
        self.tell(test, "skip", reason)

    def addFailure(self, test, err):
        self.tell(test, "fail", self._exc_info_to_string(err, test))

    def addError(self, test, err):
        self.tell(test, "error", self._exc_info_to_string(err, test))

    def addExpectedFailure(self, test, err):
        self.tell(test, "ok")


def cases(suite):
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from cases(one)
        else:
            yield one


def main():
    folder = sys.argv.pop(1)
    sys.path.insert(0, folder)
    is_list = "--list" in sys.argv
    if is_list:
        sys.argv.remove("--list")
    else:
        wanted_file, results_file = take("--names"), take("--results")

    from args_parser import parser  # the suite's own

    tests = SourceFileLoader("tests", os.path.join(folder, "__init__.py")).load_module()
    parser.parse_args()
    all_cases = list(cases(unittest.defaultTestLoader.loadTestsFromModule(tests)))
    if is_list:
        print("\n".join(case.id() for case in all_cases))
        return 0
    with open(wanted_file, encoding="utf-8") as lines:
        wanted = set(lines.read().split())
    with open(results_file, "a", encoding="utf-8") as to:
        result = Result(to)
        unittest.TestSuite(case for case in all_cases if case.id() in wanted).run(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
