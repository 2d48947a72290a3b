# SPDX-License-Identifier: MIT
"""What can be seen in the text alone: how files begin, names, and the ban list, each ban with its
replacement."""

import re
from typing import Callable, NamedTuple

from .layers import folder_of, heights
from .tree import CPP, Finding

SPDX = "SPDX-License-Identifier: MIT"
LICENSED = CPP + (".py", ".cmake", ".sh", "CMakeLists.txt", ".map", ".supp")


def spdx(tree):
    for path in tree.paths:
        if not (path.endswith(LICENSED) or path in tree.scripts):
            continue
        lines = tree.lines(path)
        first = 1 if path in tree.scripts else 0
        if SPDX not in "".join(lines[first : first + 1]):
            yield Finding(path, first + 1, "spdx", f"the first line says: {SPDX}")


def pragma_once(tree):
    for path in tree.cpp():
        if path.endswith(".h") and not re.search(r"^#pragma once$", tree.text(path), re.MULTILINE):
            yield Finding(path, 1, "pragma-once", "a header says #pragma once")


def purpose(tree):
    """A header begins with what it is for."""
    for path in tree.cpp():
        if path.endswith(".h") and not re.match(
            r"// SPDX[^\n]*\n(//\s*\n)*// *\w", tree.text(path)
        ):
            yield Finding(
                path,
                2,
                "purpose",
                "a header begins with what it is for, in a comment below the SPDX line",
            )


def names(tree):
    for path in tree.cpp():
        name = path.rsplit("/", 1)[-1]
        if not re.fullmatch(r"[a-z][a-z0-9_]*\.(h|cc)", name):
            yield Finding(path, 1, "file-name", "files are named snake_case.h and snake_case.cc")


def namespaces(tree):
    """A folder's names live in its namespace: verbena for base, else verbena::<folder>."""
    for path in tree.cpp("src/"):
        folder = folder_of(path)
        wanted = "verbena" if folder == "base" else f"verbena::{folder}"
        for number, line in enumerate(tree.code_lines(path), 1):
            match = re.match(r"namespace (verbena[\w:]*) \{", line)
            if match and match.group(1) != wanted and not match.group(1).startswith(wanted + "::"):
                yield Finding(
                    path, number, "namespace", f"src/{folder} lives in namespace {wanted}"
                )


def foreign_paths(tree):
    """No path of the machine where somebody works."""
    pattern = re.compile(r"(?<![\w.$}])/(?:work|home/[a-z]\w*|root)/\w")
    for path in tree.paths:
        if path.endswith((".png", ".pcap", ".pcapng", ".bin")):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            if pattern.search(line):
                yield Finding(path, number, "absolute-path", "names a folder of one machine")


def conflict_markers(tree):
    pattern = re.compile(r"^(<{7}|>{7}|={7})(\s|$)")
    for path in tree.paths:
        if path.endswith(CPP + (".py", ".txt", ".cmake")) or path in tree.scripts:
            for number, line in enumerate(tree.lines(path), 1):
                if pattern.match(line):
                    yield Finding(path, number, "conflict", "a conflict marker of git")


class Ban(NamedTuple):
    rule: str
    pattern: str
    instead: str
    applies: Callable = lambda place: True
    in_comments: bool = False


class Place(NamedTuple):
    """Where a line stands: what a ban may ask about."""

    path: str
    folder: str  # of src/, or None
    is_test: bool
    is_below_nic: bool


def in_src(place):
    return place.folder is not None and not place.is_test


def in_library(place):
    return in_src(place) and place.folder != "cli"


def prints(place):
    """Who prints nothing: all but an assertion's last words and the log that was asked for."""
    return in_library(place) and place.path not in ("src/base/assert.cc", "src/base/log.cc")


def below_nic(place):
    return in_src(place) and place.is_below_nic


BANS = [
    Ban("throw", r"\bthrow\b", "return a Result<T, E>", in_src),
    Ban(
        "shared-ptr",
        r"\b(shared_ptr|weak_ptr|make_shared)\b",
        "one owner (unique_ptr), and its number for the others",
    ),
    Ban(
        "clock",
        r"\b(steady|system|high_resolution)_clock\b|\b(clock_gettime|gettimeofday)\s*\(",
        "take the parameter `Instant now`",
        below_nic,
    ),
    Ban(
        "chance",
        r"\bstd::(random_device|mt19937|mt19937_64)\b|(?<![\w.:>])s?rand\s*\(",
        "take a RandomSource (base/random.h)",
        below_nic,
    ),
    Ban(
        "unfinished", r"\b(FIXME|TODO|XXX|HACK)\b", "finish it, or open an issue", in_comments=True
    ),
    Ban(
        "byte-order",
        r"\b(htonl|htons|ntohl|ntohs)\b",
        "be16 and be32 of wire/ (htobe32 at the C border)",
    ),
    Ban("using-std", r"\busing\s+namespace\s+std\b", "write std::"),
    Ban(
        "full-fence",
        r"\b(__)?atomic_thread_fence\s*\([^)]*(seq_cst|SEQ_CST)|\b__sync_synchronize\b"
        r"|\b_mm_mfence\b",
        "an exchange on the word, or base/fence.h: clang makes an mfence of this (90 ns)",
        lambda place: place.path != "src/base/fence.h",
    ),
    Ban(
        "assert",
        r"(?<![\w.])assert\s*\(",
        "VERBENA_ASSERT (base/assert.h), which stays on in release",
        in_src,
    ),
    Ban(
        "print",
        r"\bstd::(cout|cerr|clog)\b|(?<!\w)(?:std::)?(f?printf|puts|perror|putchar)\s*\(",
        "base/log.h: a library prints nothing unless asked",
        prints,
    ),
    Ban("rtti", r"\b(dynamic_cast|typeid)\b", "a virtual function or an enum"),
    Ban(
        "c-assert-header",
        r"#\s*include\s*<(cassert|assert\.h|iostream|regex)>",
        "base/assert.h; base/log.h; std::string_view",
        in_library,
        in_comments=True,
    ),
    Ban(
        "nolint",
        r"\bNOLINT(NEXTLINE|BEGIN)?\b(?!\([\w.,* -]+\): \S)",
        "NOLINT(name-of-check): reason",
        in_comments=True,
    ),
]


TEST_FILE = re.compile(r"_(test|fuzz|testing)\.(cc|h)$|/(test|fake)_\w+\.(cc|h)$")


def bans(tree):
    height = heights(tree)
    for path in tree.cpp():
        folder = folder_of(path)
        is_test = folder is None or bool(TEST_FILE.search(path))
        place = Place(path, folder, is_test, height.get(folder, 0) < height["nic"])
        for ban in BANS:
            if not ban.applies(place):
                continue
            pattern = re.compile(ban.pattern)
            for number, line in enumerate(
                tree.lines(path) if ban.in_comments else tree.code_lines(path), 1
            ):
                match = pattern.search(line)
                if match:
                    found = " ".join(match.group(0).split()).rstrip("( ")
                    yield Finding(
                        path, number, ban.rule, f"`{found}` is banned; instead: {ban.instead}"
                    )


CHECKS = [
    ("spdx", spdx),
    ("pragma-once", pragma_once),
    ("purpose", purpose),
    ("file-name", names),
    ("namespace", namespaces),
    ("absolute-path", foreign_paths),
    ("conflict", conflict_markers),
    ("ban", bans),
]
