# SPDX-License-Identifier: MIT
"""The source tree as the checks see it: its files, and C++ without comments and literals."""

import functools
import pathlib
import re
import subprocess
from typing import NamedTuple

CPP = (".h", ".cc")
SKIPPED_FOLDERS = {".git", "build", "shared", ".cache", "__pycache__"}


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


class Tree:
    """The files under version control, and the new ones that git does not ignore."""

    def __init__(self, root, only=()):
        self.root = pathlib.Path(root)
        self.only = [str(pathlib.PurePath(path)) for path in only]

    @functools.cached_property
    def all_paths(self):
        try:
            command = ["git", "-C", str(self.root), "ls-files", "-z", "-co", "--exclude-standard"]
            listed = subprocess.run(
                command, check=True, capture_output=True, text=True
            ).stdout.split("\0")
            names = sorted({name for name in listed if name})
        except (OSError, subprocess.CalledProcessError):  # an unpacked archive is no repository
            names = sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))
            names = [name for name in names if not SKIPPED_FOLDERS.intersection(name.split("/"))]
        return [name for name in names if (self.root / name).is_file()]

    @functools.cached_property
    def paths(self):
        return [path for path in self.all_paths if self.is_wanted(path)]

    def is_wanted(self, path):
        return not self.only or any(path == o or path.startswith(o + "/") for o in self.only)

    def cpp(self, under=""):
        return [path for path in self.paths if path.endswith(CPP) and path.startswith(under)]

    @functools.lru_cache(maxsize=None)
    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    @functools.lru_cache(maxsize=None)
    def lines(self, path):
        return self.text(path).splitlines()

    @functools.lru_cache(maxsize=None)
    def code(self, path):
        return blank(self.text(path))

    @functools.lru_cache(maxsize=None)
    def code_lines(self, path):
        return self.code(path).splitlines()

    @functools.lru_cache(maxsize=None)
    def quoted_lines(self, path):
        """Numbers of the lines that hold part of a raw string: somebody else's text."""
        found = set()
        if path.endswith(CPP):
            text = self.text(path)
            for match in LITERAL.finditer(text):
                if RAW_STRING.match(match.group(0)):
                    first = text.count("\n", 0, match.start()) + 1
                    found.update(range(first, first + match.group(0).count("\n") + 1))
        return found

    @functools.cached_property
    def scripts(self):
        """Path to the interpreter's name, for every file that begins with #!."""
        found = {}
        for path in self.paths:
            with open(self.root / path, "rb") as file:
                first = file.readline(200)
            if first.startswith(b"#!"):
                found[path] = first[2:].decode(errors="replace").split("/")[-1].split()[-1]
        return found

    def is_excused(self, finding):
        """Whether the line, or the one above it, says `check: allow RULE: reason`."""
        try:
            lines = self.lines(finding.path)
        except OSError:
            return False
        pattern = re.compile(r"check: allow " + re.escape(finding.rule) + r": \S")
        return any(pattern.search(line) for line in lines[max(0, finding.line - 2) : finding.line])


LITERAL = re.compile(
    r"//(?:\\\n|[^\n])*"  # comment to the end of the line
    r"|/\*.*?\*/"  # block comment
    r'|(?:u8|[uUL])?R"([^()\\\s]{0,16})\(.*?\)\1"'  # raw string
    r'|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"'  # string
    r"|(?<![0-9A-Fa-f])(?:u8|[uUL])?'(?:\\.|[^'\\\n])+'",  # character, not a digit separator
    re.DOTALL,
)
RAW_STRING = re.compile(r'(?:u8|[uUL])?R"')
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[^\n]*", re.MULTILINE)


def blank(text):
    """The text with comments, literals and includes turned into spaces: lines and columns stay."""

    def spaces(match):
        found = match.group(0)
        kept = re.sub(r"[^\n]", " ", found)
        if found[0] != "/" and len(found) >= 2:
            quote = found[-1]
            return quote + kept[1:-1] + quote
        return kept

    return LITERAL.sub(spaces, INCLUDE.sub(lambda m: " " * len(m.group(0)), text))
