# SPDX-License-Identifier: MIT
"""Checks that other programs do: clang-format, bash, python."""

import ast
import os
import re
import subprocess

from .tree import Finding

CLANG_FORMAT = "clang-format-19"


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, errors="replace", **options)


def needs(program):
    """A finding when the program is missing: a check that did not run has not passed."""
    from shutil import which

    return (
        []
        if which(program)
        else [Finding("scripts/check", 1, "missing", f"{program}: run scripts/setup test")]
    )


def shell(tree):
    for path, interpreter in tree.scripts.items():
        if interpreter not in ("bash", "sh"):
            continue
        result = run(["bash", "-n", str(tree.root / path)])
        for line in result.stderr.splitlines():
            match = re.search(r": line (\d+): (.*)", line)
            yield Finding(
                path,
                int(match.group(1)) if match else 1,
                "shell",
                match.group(2) if match else line,
            )
        if "set -euo pipefail" not in tree.text(path):
            yield Finding(path, 1, "shell", "a script says set -euo pipefail")
        if not os.access(tree.root / path, os.X_OK):
            yield Finding(path, 1, "shell", "begins with #! but is not executable")


def python(tree):
    for path in tree.paths:
        if not (path.endswith(".py") or tree.scripts.get(path, "").startswith("python")):
            continue
        try:
            ast.parse(tree.text(path), path)
        except SyntaxError as error:
            yield Finding(path, error.lineno or 1, "python", error.msg)


def clang_format(tree):
    missing = needs(CLANG_FORMAT)
    files = tree.cpp()
    if missing or not files:
        yield from missing
        return
    result = run([CLANG_FORMAT, "--dry-run", "--style=file", *files], cwd=tree.root)
    seen = set()
    for line in result.stderr.splitlines():
        match = re.match(r"(.+?):(\d+):\d+: (?:warning|error): (.*)", line)
        if match and match.group(1) not in seen:
            seen.add(match.group(1))
            yield Finding(
                match.group(1),
                int(match.group(2)),
                "format",
                f"{CLANG_FORMAT} -i would change this file",
            )
    if result.returncode and not seen:
        yield Finding(".clang-format", 1, "format", result.stderr.strip() or "clang-format failed")


def fix_format(tree):
    files = tree.cpp()
    if files:
        subprocess.run([CLANG_FORMAT, "-i", "--style=file", *files], cwd=tree.root, check=True)
