# SPDX-License-Identifier: MIT
"""Checks that other programs do: clang-format, clang-tidy, bash, python."""

import ast
import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess

from .layers import INCLUDE
from .tree import Finding

CLANG_FORMAT = "clang-format-19"
CLANG_TIDY = "clang-tidy-19"
CLANG = "clang++-19"


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


def changed_files(tree):
    """The files that differ from the shared branch, or from the last commit where there is none."""
    for base in ("origin/main", "origin/HEAD", "HEAD~1", "HEAD"):
        merge_base = run(["git", "merge-base", "HEAD", base], cwd=tree.root)
        if merge_base.returncode == 0:
            break
    else:
        return None
    changed = run(
        ["git", "diff", "--name-only", merge_base.stdout.strip()], cwd=tree.root
    ).stdout.split("\n")
    fresh = run(["git", "ls-files", "-o", "--exclude-standard"], cwd=tree.root).stdout.split("\n")
    return set(changed + fresh)


@contextlib.contextmanager
def only_one(folder):
    """Two checks of one tree at a time configure one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def clang_tidy(tree, everything):
    missing = needs(CLANG_TIDY) + needs(CLANG) + needs("cmake")
    if missing:
        yield from missing
        return
    folder = tree.root / "build/check"
    with only_one(folder):
        configured = run(
            [
                "cmake",
                "-S",
                str(tree.root),
                "-B",
                str(folder),
                "-G",
                "Ninja",
                "-DCMAKE_BUILD_TYPE=Debug",
                f"-DCMAKE_CXX_COMPILER={CLANG}",
                "-DVERBENA_PCH=OFF",
                "-DVERBENA_FUZZ=ON",
            ]
        )
    if configured.returncode:
        yield Finding(
            "CMakeLists.txt", 1, "tidy", "configuring failed: " + configured.stderr.strip()[-2000:]
        )
        return
    commands = {}
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), tree.root)
        commands[path] = entry["command"]
    wanted = [path for path in tree.cpp() if path in commands]
    changed = None if everything else changed_files(tree)
    if changed is not None:
        wanted = [path for path in wanted if changed.intersection(inputs(tree, path))]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        tidied = pool.map(lambda path: tidy_one(tree, folder, path, commands[path]), wanted)
        yield from {finding for findings in tidied for finding in findings}


def inputs(tree, path):
    """The file and every header of ours that it reaches."""
    reached, todo = set(), [path]
    while todo:
        current = todo.pop()
        if current in reached:
            continue
        reached.add(current)
        for line in tree.lines(current):
            match = INCLUDE.match(line)
            if match:
                for place in ("src", "include", current.split("/")[0], os.path.dirname(current)):
                    target = os.path.normpath(os.path.join(place, match.group(1)))
                    if (tree.root / target).is_file():
                        todo.append(target)
                        break
    return reached


def tidy_one(tree, folder, path, command):
    """Findings in one file. A clean result is kept until an input or the rules change."""
    digest = hashlib.sha256()
    for text in [(tree.root / ".clang-tidy").read_text(), command] + [
        tree.text(p) for p in sorted(inputs(tree, path))
    ]:
        digest.update(text.encode())
    # The analyzer takes half of the time: scripts/test leaves it to --long and to checks by hand.
    is_quick = os.environ.get("VERBENA_TEST_MODE") == "quick"
    full_mark = folder / "tidy" / digest.hexdigest()
    quick_mark = full_mark.with_suffix(".quick")
    if full_mark.exists() or (is_quick and quick_mark.exists()):
        return []
    mark = quick_mark if is_quick else full_mark
    checks = ["--checks=-clang-analyzer-*"] if is_quick else []
    result = run(
        [CLANG_TIDY, "--quiet", *checks, "-p", str(folder), str(tree.root / path)], cwd=tree.root
    )
    findings = []
    for line in result.stdout.splitlines():
        match = re.match(r"(/.+?):(\d+):\d+: (?:warning|error): (.*)", line)
        if match:
            where = os.path.relpath(match.group(1), tree.root)
            findings.append(Finding(where, int(match.group(2)), "tidy", match.group(3)))
    if result.returncode and not findings:
        findings.append(
            Finding(
                path,
                1,
                "tidy",
                "clang-tidy failed: " + (result.stdout + result.stderr).strip()[-500:],
            )
        )
    if not findings:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return findings
