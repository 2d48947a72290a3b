# SPDX-License-Identifier: MIT
"""clang-tidy. Most of what it does for a file it does for the standard library's headers, over and
over: where VERBENA_TEST_MODE is quick, one file that includes several stands for them. Those of one
target have no name in common, which is found here too: the sanitizers' builds join them as well."""

import collections
import concurrent.futures
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shlex
from typing import NamedTuple

from .layers import INCLUDE
from .tools import needs, run
from .tree import Finding

CLANG_TIDY = "clang-tidy-19"
CLANG = "clang++-19"
BATCHES = (16, 6)  # files of several targets: first, and those of them with names in common
TARGET_MIN = 4  # files from which on those of a target are looked at together
# They include libc's headers inside pragmas about visibility: each file others, in its own order.
APART = ("src/preload/", "src/rspreload/", "tests/preload/", "tests/rspreload/")
ONCE = ("int main(", "LLVMFuzzerTestOneInput")  # in a program
NO_ANALYZER = "--checks=-clang-analyzer-*"
NOT_BEGUN = "it could not even begin"
ONLY_ERRORS = "--checks=-*,misc-definitions-in-headers"  # it wants one check; this costs nothing
FOR_HEADERS = (
    "google-global-names-in-headers",
    "google-build-namespaces",
    "misc-definitions-in-headers",
)


class Command(NamedTuple):
    """How a file is compiled, as far as clang-tidy cares: not how code is made of it."""

    text: str
    target: str
    flags: tuple  # -std and warnings
    folders: tuple  # -I and -isystem, each with what follows it
    defines: dict  # values by name


def parse(text):
    target, flags, folders, defines = "", [], [], {}
    words = iter(shlex.split(text)[1:])
    for word in words:
        if word == "-o":
            target = next(words).split("CMakeFiles/")[-1].split(".dir/")[0]
        elif word == "-c":
            next(words)
        elif word == "-isystem":
            folders.append((word, next(words)))
        elif word.startswith("-I"):
            folders.append((word,))
        elif word.startswith("-D"):
            name, _, value = word[2:].partition("=")
            defines[name] = value
        elif word.startswith(("-std", "-W")):
            flags.append(word)
    return Command(text, target, tuple(flags), tuple(folders), defines)


def tidy(tree, everything):
    missing = needs(CLANG_TIDY) + needs(CLANG) + needs("cmake")
    if missing:
        yield from missing
        return
    folder = tree.root / "build/check"
    commands = configure(tree, folder)
    if isinstance(commands, Finding):
        yield commands
        return
    wanted = [path for path in tree.cpp() if path in commands]
    # The analyzer takes half of the time: scripts/test leaves it to --long and to checks by hand.
    is_quick = os.environ.get("VERBENA_TEST_MODE") == "quick"
    changed = None if everything or is_quick else changed_files(tree)
    if changed is not None:
        wanted = [path for path in wanted if changed.intersection(inputs(tree, path))]
    marks = {path: mark(tree, folder, path, commands[path].text, is_quick) for path in wanted}
    wanted = [path for path in wanted if not any(known.exists() for known in marks[path])]
    look = Look(tree, folder, commands)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        if is_quick:
            wanted, shared = look_quickly(look, pool, wanted, marks)
            clashing = {finding.path for finding in shared}
        else:
            shared, clashing = in_common(look, pool, wanted)
        options = [NO_ANALYZER] if is_quick else []
        found = list(pool.map(lambda path: look.at_one(path, options), wanted))
    clean = [path for path, findings in zip(wanted, found) if not findings]
    # What clashes is to be found again, until it is mended.
    note_clean(marks, [path for path in clean if path not in clashing])
    alone = {finding for findings in found for finding in findings}
    yield from alone
    places = {(finding.path, finding.line) for finding in alone}
    yield from (finding for finding in shared if (finding.path, finding.line) not in places)


def look_quickly(look, pool, wanted, marks):
    """The files that have to be looked at one by one, and the names that files of one target have
    in common."""
    shared = []
    clashing = set()
    for make in [targets, *(functools.partial(batches, size=size) for size in BATCHES)]:
        together = make(wanted, look)
        suspects = {path for path in wanted if not any(path in batch for batch in together)}
        for batch, findings in zip(together, pool.map(look.at_batch, together)):
            named = {finding.path for finding in findings}
            suspects.update(named if named.issubset(batch) else batch)
            if make is targets:
                shared += clashes(findings)
        clashing.update(finding.path for finding in shared)
        note_clean(marks, [path for path in wanted if path not in suspects | clashing])
        wanted = [path for path in wanted if path in suspects]
    return wanted, shared


def in_common(look, pool, wanted):
    """Just the names that files of one target have in common, of those that have some of these; and
    all files of such targets."""
    shared, clashing = [], set()
    together = targets(wanted, look)
    for batch, findings in zip(
        together, pool.map(lambda batch: look.at_batch(batch, ONLY_ERRORS), together)
    ):
        shared += clashes(findings)
        clashing.update(batch if clashes(findings) else [])
    return shared, clashing


def clashes(findings):
    return [
        finding._replace(message=finding.message + ", with its target's other files")
        for finding in findings
        if "clang-diagnostic-error" in finding.message or NOT_BEGUN in finding.message
    ]


@contextlib.contextmanager
def only_one(folder):
    """Two checks of one tree at a time configure one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def configure(tree, folder):
    """The command by file, or what went wrong."""
    settings = [
        "-DCMAKE_BUILD_TYPE=Debug",
        f"-DCMAKE_CXX_COMPILER={CLANG}",
        "-DVERBENA_PCH=OFF",
        "-DVERBENA_FUZZ=ON",
    ]
    with only_one(folder):
        configured = run(
            ["cmake", "-S", str(tree.root), "-B", str(folder), "-G", "Ninja", *settings]
        )
    if configured.returncode:
        said = configured.stderr.strip()[-2000:]
        return Finding("CMakeLists.txt", 1, "tidy", "configuring failed: " + said)
    return {
        os.path.relpath(os.path.join(entry["directory"], entry["file"]), tree.root): parse(
            entry["command"]
        )
        for entry in json.loads((folder / "compile_commands.json").read_text())
    }


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


def mark(tree, folder, path, command, is_quick):
    """The files that say, one of them, that this one was clean; the first is to be made. They hold
    until an input or the rules change."""
    digest = hashlib.sha256()
    for text in [(tree.root / ".clang-tidy").read_text(), command] + [
        tree.text(p) for p in sorted(inputs(tree, path))
    ]:
        digest.update(text.encode())
    full = folder / "tidy" / digest.hexdigest()
    return [full.with_suffix(".quick"), full] if is_quick else [full]


def note_clean(marks, paths):
    for path in paths:
        marks[path][0].parent.mkdir(parents=True, exist_ok=True)
        marks[path][0].touch()


def targets(paths, look):
    """All files of each larger target that has some of these, those that take longest first."""
    wanted = {look.commands[path].target for path in paths}
    files = collections.defaultdict(list)
    for path in look.tree.cpp():
        if path in look.commands and not path.startswith(APART):
            files[look.commands[path].target].append(path)
    large = [files[target] for target in wanted if len(files[target]) >= TARGET_MIN]
    return sorted(large, key=lambda some: (-len(some), some))


def batches(paths, look, size):
    """Groups of files that one file can include: no macro has two values, what a program has once
    is there once, and no folder gives more than a third, since its files have names in common."""
    made = []
    for path in paths:
        place = os.path.dirname(path)
        needed = dict(look.commands[path].defines)
        needed.update((name, path) for name in ONCE if name in look.tree.text(path))
        for batch, taken in made:
            beside = sum(os.path.dirname(other) == place for other in batch)
            fits = all(taken.get(name, value) == value for name, value in needed.items())
            if fits and len(batch) < size and beside < size // 3:
                batch.append(path)
                taken.update(needed)
                break
        else:
            made.append(([path], needed))
    return [batch for batch, _ in made]


class Look:
    def __init__(self, tree, folder, commands):
        self.tree, self.folder, self.commands = tree, folder, commands

    def at_batch(self, batch, checks=NO_ANALYZER):
        """What there is to be said; some of it only because the files are together."""
        text = "".join(f'#include "{self.tree.root / path}"\n' for path in batch)
        together = self.folder / "together" / (hashlib.sha256(text.encode()).hexdigest() + ".cc")
        together.parent.mkdir(parents=True, exist_ok=True)
        together.write_text(text)
        commands = [self.commands[path] for path in batch]
        folders = dict.fromkeys(folder for command in commands for folder in command.folders)
        defines = {name: value for c in commands for name, value in c.defines.items()}
        result = run(
            [
                CLANG_TIDY,
                "--quiet",
                # What the file that includes them is told for doing so.
                checks + ",-bugprone-suspicious-include",
                str(together),
                "--",
                *commands[0].flags,
                "-ferror-limit=0",
                "-Wno-shadow",  # of a name of another file
                *(word for folder in folders for word in folder),
                *(f"-D{name}={value}" if value else f"-D{name}" for name, value in defines.items()),
            ],
            cwd=self.tree.root,
        )
        findings = [f for f in self.read(result) if not self.is_about_headers(f)]
        if result.returncode and not list(self.read(result)):
            return [Finding(str(together), 1, "tidy", NOT_BEGUN)]
        return findings

    @staticmethod
    def is_about_headers(finding):
        """Said of a file that is one here only because another includes it."""
        return finding.path.endswith(".cc") and any(rule in finding.message for rule in FOR_HEADERS)

    def at_one(self, path, options):
        result = run(
            [CLANG_TIDY, "--quiet", *options, "-p", str(self.folder), str(self.tree.root / path)],
            cwd=self.tree.root,
        )
        findings = list(self.read(result))
        if result.returncode and not findings:
            said = (result.stdout + result.stderr).strip()[-500:]
            findings.append(Finding(path, 1, "tidy", "clang-tidy failed: " + said))
        return findings

    def read(self, result):
        for line in result.stdout.splitlines():
            match = re.match(r"(/.+?):(\d+):\d+: (?:warning|error): (.*)", line)
            if match:
                where = os.path.relpath(match.group(1), self.tree.root)
                yield Finding(where, int(match.group(2)), "tidy", match.group(3))
