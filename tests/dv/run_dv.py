#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Programs that use verbena/dv.h, and what the preload keeps of a program's memory.

Usage: run_dv.py BUILD_FOLDER. Prints what fails, and closes with `N passed, N failed, N skipped`.
"""

import os
import pathlib
import re
import subprocess
import sys

SKIPPED = 77
SCENES = ("stopped", "later", "errors", "adopted", "forked")
MEMORY = (
    "dontneed", "dontneed-otherwise", "free", "grown", "mapped-over", "flags", "allocated", "load",
)
ALLOCATORS = {"jemalloc": "libjemalloc.so.2", "tcmalloc": "libtcmalloc_minimal.so.4"}
# Everything is given back at once.
EAGER = {
    "MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0",
    "TCMALLOC_RELEASE_RATE": "10000",
}


class Runner:
    def __init__(self, build):
        self.build = pathlib.Path(build)
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}

    def run(self, name, program, scene, preload=(), ours=True, **variables):
        environment = dict(os.environ, **variables)
        for variable in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
            environment.pop(variable, None)
        if ours:
            environment["LD_LIBRARY_PATH"] = str(self.build / "lib")
        if preload:
            environment["LD_PRELOAD"] = ":".join(map(str, preload))
        try:
            done = subprocess.run(
                [self.build / "bin/test" / program, scene], env=environment, timeout=120,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", check=False,
            )
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            status, output = "it hangs", late.stdout or ""
        result = {0: "passed", SKIPPED: "skipped"}.get(status, "failed")
        self.counts[result] += 1
        for line in output.splitlines() if result == "failed" else re.findall("SKIP.*", output):
            print(f"  {name}: {line}")
        if result == "failed":
            print(f"FAIL {name}: status {status}")

    def skip(self, name, why):
        self.counts["skipped"] += 1
        print(f"SKIP {name}: {why}")


def allocators():
    listed = subprocess.run(
        ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True
    ).stdout
    found = dict(re.findall(r"^\s*(\S+) \(.*\) => (\S+)$", listed, re.MULTILINE))
    return {name: found.get(file) for name, file in ALLOCATORS.items()}


def can_adopt(runner):
    """The scenes of memory show something only where memory is adopted while threads run."""
    probe = subprocess.run(
        [runner.build / "bin/test/dv_probe", "adopted"], check=False,
        env=dict(os.environ, LD_LIBRARY_PATH=str(runner.build / "lib")),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    return "SKIP" not in probe.stdout


def main():
    runner = Runner(sys.argv[1])
    preload = runner.build / "lib/libverbena-preload.so"
    for scene in SCENES:
        runner.run(scene, "dv_probe", scene)
        runner.run(f"{scene} (never)", "dv_probe", scene, VERBENA_ADOPT="never")
    runner.run("ring", "dv_probe", "ring", VERBENA_PATH="ring")
    # libverbena comes by the program's own path, libibverbs is the system's.
    runner.run("foreign", "dv_probe", "foreign", ours=False,
               preload=[runner.build / "lib/libverbena.so.1",
                        "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"])
    if not can_adopt(runner):
        runner.skip("the program's memory", "nothing is adopted on this system")
        return runner
    for scene in MEMORY:
        runner.run(scene, "dv_memory", scene, preload=[preload])
    for name, path in allocators().items():
        if not path:
            runner.skip(name, "not installed")
            continue
        for order in ([preload, path], [path, preload]):
            for scene in ("dontneed", "load"):
                runner.run(f"{scene} ({name})", "dv_memory", scene, preload=order, **EAGER)
    return runner


if __name__ == "__main__":
    counts = main().counts
    print(", ".join(f"{number} {what}" for what, number in counts.items()))
    sys.exit(1 if counts["failed"] else 0)
