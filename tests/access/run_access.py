#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Taking access away: in bounded time, and not one byte written, or read, afterwards.

`access_probe` is a set of scenes over verbs, of two and three processes; each runs with each
carrier (--mode). `access_litmus` tries the order of the peer's look and the owner's mark between
two processes, and must fail without the fence. VERBENA_TEST_MODE=long: many rounds of everything.
"""

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "conformance"))
import library  # noqa: E402

LONG = os.environ.get("VERBENA_TEST_MODE") == "long"
SECONDS = 1000 if LONG else 120  # for one scene; a busy machine needs a fraction
SKIPPED = 77
SCENES = {
    "taken from a peer that runs": ["takings", "running"],
    "taken from a peer that is stopped": ["takings", "stopped"],
    "taken from a peer that is killed": ["takings", "killed"],
    "taken from a peer that is held before its call": ["held", "first-slot"],
    "taken from a peer that is held before its small call": ["held", "small"],
    "taken from a queue pair of a second slot": ["held", "second-slot"],
    "a thousand regions and a peer that is held": ["many-regions"],
    "a peer that is stopped, and another one": ["bystander"],
    "a stopped target serves": ["serves"],
    "lent messages are taken back with their connection": ["taken-back"],
    "messages right before the end of a connection": ["last-words"],
    "a peer that dies behind its last messages": ["death"],
    "a region that is registered anew": ["registered-anew"],
    "taken beside the end of the connection": ["taken-beside"],
    "key 0": ["key-zero"],
}
# Once more where the kernel cannot hold who touches pages on their way (userfaultfd is denied, as
# containers do): it is for us to keep our own threads and our peers out.
UNHELD_SCENES = (
    "taken from a peer that is stopped",
    "a peer that is stopped, and another one",
    "a region that is registered anew",
)
ROUNDS = 5_000_000 if LONG else 300_000
ROUNDS_WITHOUT_FENCE = 300_000


class Skip(Exception):
    pass


def run(words, variables):
    """What a program printed, and how it ended; all its processes end with it."""
    program = subprocess.Popen(
        words,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=library.die_with_parent,
    )
    try:
        output, _ = program.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired as problem:
        os.killpg(program.pid, signal.SIGKILL)
        output, _ = program.communicate()
        raise library.Failure(f"hangs\n{output}") from problem
    return output, program.returncode


class Report(library.Report):
    def scene(self, name, words, variables):
        def body():
            output, status = run(words, variables)
            if status == SKIPPED:
                raise Skip(output.strip().removeprefix("SKIP "))
            if status != 0:
                raise library.Failure(f"ends with {status}\n{output}")

        try:
            self.case(name, body)
        except Skip as why:
            self.skip(name, why)


def violations(words, rounds, *more):
    output, status = run([*words, str(rounds), *more], dict(os.environ))
    found = re.match(r"(\d+) violations", output)
    if not found or status not in (0, 1):
        raise library.Failure(f"ends with {status}\n{output}")
    return int(found[1]), output.strip()


def litmus(report, program):
    def holds():
        count, told = violations([program], ROUNDS)
        if count:
            raise library.Failure(told)
        return told

    def can_fail():
        for _ in range(20):
            count, told = violations([program], ROUNDS_WITHOUT_FENCE, "no-fence")
            if count:
                return told
        raise library.Failure("without the fence nothing is noticed: " + told)

    if os.cpu_count() < 2 or len(os.sched_getaffinity(0)) < 2:
        report.skip("litmus", "there is one processor")
        return
    report.case("litmus of hazard against key", holds)
    # Other processors reorder otherwise, but the store and the load behind it all of them.
    report.case("the litmus can fail", can_fail)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="the folder of our libibverbs")
    parser.add_argument("--programs", required=True, help="the folder of the probes")
    parser.add_argument("--only", help="scenes that match this")
    library.add_mode(parser)
    options = parser.parse_args()
    folder = pathlib.Path(options.programs).resolve()
    report = Report(options.only)
    for mode in library.modes(options.mode):
        variables = library.environment(options.library, mode)
        for name, words in SCENES.items():
            title = f"{name} ({mode})" if options.mode == "all" else name
            probe = [str(folder / "access_probe"), *words]
            report.scene(title, probe, variables)
            if name in UNHELD_SCENES:
                deny = [str(folder / "environment_deny"), "userfaultfd", "--"]
                report.scene(f"{title}, without userfaultfd", [*deny, *probe], variables)
    # The litmus knows no carrier: once is enough.
    if os.environ.get("VERBENA_PATH") != "ring" and os.environ.get("VERBENA_ADOPT") != "never":
        litmus(report, str(folder / "access_litmus"))
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
