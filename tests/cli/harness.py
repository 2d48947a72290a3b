# SPDX-License-Identifier: MIT
"""What the tests of the command line share: running `verbena`, and counting."""

import os
import pathlib
import subprocess


class Verbena:
    def __init__(self, build, runtime):
        self.build = pathlib.Path(build).resolve()
        self.program = str(self.build / "bin/verbena")
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("VERBENA_", "LD_"))
        }
        self.environment.update(XDG_RUNTIME_DIR=str(runtime), LC_ALL="C")
        self.passed = self.failed = 0

    def __call__(self, *words, timeout=60, **options):
        environment = dict(self.environment, **options.pop("environment", {}))
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            [self.program, *map(str, words)], env=environment, text=True, timeout=timeout,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **options,
        )

    def check(self, what, holds, seen=""):
        """Counts; `seen` is anything that helps to understand a failure."""
        if holds:
            self.passed += 1
            return
        self.failed += 1
        if isinstance(seen, subprocess.CompletedProcess):
            seen = f"status {seen.returncode}\n{seen.stdout}{seen.stderr}"
        print(f"{what}: does not hold\n{seen}")

    def summary(self):
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed else 0
