# SPDX-License-Identifier: MIT
"""Sizes: one idea a module, and it fits on a screen.

Functions are found by a small scanner rather than by a compiler, so that every file is looked at in
a moment, headers and templates that nobody instantiates included.
"""

import re
from typing import NamedTuple

from .tree import Finding

FUNCTION_LINES = 70
FILE_LINES = 500
LINE_COLUMNS = 100
PARAMETERS = 6
# Prose in markdown is wrapped by its author, and the licence by its own.
SIZED = (".h", ".cc", ".py", ".cmake", ".txt", ".map", ".sh")


class Function(NamedTuple):
    name: str
    line: int
    lines: int
    parameters: int


def sized(tree):
    return [p for p in tree.paths if p.endswith(SIZED) or p in tree.scripts]


def file_lines(tree):
    for path in sized(tree):
        count = len(tree.lines(path))
        if count > FILE_LINES:
            yield Finding(path, 1, "file-lines", f"{count} lines, the limit is {FILE_LINES}")


def line_columns(tree):
    for path in sized(tree):
        quoted = tree.quoted_lines(path)
        for number, line in enumerate(tree.lines(path), 1):
            if len(line) > LINE_COLUMNS and "http" not in line and number not in quoted:
                yield Finding(
                    path,
                    number,
                    "line-columns",
                    f"{len(line)} columns, the limit is {LINE_COLUMNS}",
                )


def function_sizes(tree):
    for path in tree.cpp():
        for function in functions(tree.code(path)):
            if function.lines > FUNCTION_LINES:
                yield Finding(
                    path,
                    function.line,
                    "function-lines",
                    f"{function.name} has {function.lines} lines, the limit is {FUNCTION_LINES}",
                )
            if function.parameters > PARAMETERS:
                yield Finding(
                    path,
                    function.line,
                    "parameters",
                    f"{function.name} has {function.parameters} parameters, at most {PARAMETERS}",
                )


CHECKS = [
    ("file-lines", file_lines),
    ("line-columns", line_columns),
    ("function-size", function_sizes),
]

DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
SCOPE = re.compile(r"^\s*(?:inline\s+)?(?:namespace|extern\s*\")")
TYPE = re.compile(r"(?:^|[\s>])(?:class|struct|union|enum)\b[^()=]*$")
NOT_PARAMETERS = {
    "alignas",
    "decltype",
    "noexcept",
    "requires",
    "explicit",
    "__attribute__",
    "sizeof",
    "asm",
}
# What may stand between a parameter list and the body; macros (thread-safety annotations) too.
QUALIFIER = re.compile(
    r"\s+|(?:const|noexcept|override|final|volatile|mutable|try|[A-Z][A-Z0-9_]+)\b"
    r"|&&?|\[\[[^\]]*\]\]"
)
INITIALISERS = re.compile(r"\)[^():]*(?:\([^()]*\)[^():]*)?(?<!:):(?!:)[^;]*[\w>]\s*$", re.DOTALL)


def functions(code):
    """Every function with a body. `code` has neither comments nor literals (tree.blank)."""
    code = DIRECTIVE.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), code)
    found = []
    head = at = parentheses = 0
    while at < len(code):
        char = code[at]
        if char in "([":
            parentheses += 1
        elif char in ")]":
            parentheses -= 1
        elif char == ";" and parentheses == 0:
            head = at + 1
        elif char == "}":
            head, parentheses = at + 1, 0
        elif char == "{":
            before = strip_macros(strip_labels(code[head:at]))
            if parentheses > 0:
                at = matching(code, at)  # a braced initialiser: the head goes on behind it
            elif SCOPE.match(before) or TYPE.search(strip_template(before)):
                head = at + 1
            elif INITIALISERS.search(before):
                at = matching(code, at)  # of a member, in a constructor: here too
            else:
                end = matching(code, at)
                function = as_function(code, at - len(before), at, end)
                if function:
                    found.append(function)
                    head = end + 1
                elif not before.rstrip().endswith("=") and code[end + 1 : end + 2] in ",;":
                    head = end + 1
                at = end
        at += 1
    return found


def strip_labels(head):
    """Without `public:` and the like in front."""
    return re.sub(r"^\s*(?:public|private|protected)\s*:(?!:)", "", head)


def strip_macros(head):
    """Without whole lines of macros in front: those that a function's own head follows."""
    while match := re.match(r"\s*[A-Z][A-Z0-9_]*\s*\(", head):
        closed = groups(head)
        end = closed[0][1] + 1 if closed else 0
        if not closed or not re.match(r"[ \t]*\n\s*\S", head[end:]):
            break
        head = head[end:]
    return head


def only_qualifiers(text):
    """Whether nothing but qualifiers, a return type or member initialisers follow."""
    at = 0
    while at < len(text):
        if re.match(r"->|requires\b|:(?!:)", text[at:]):
            return True
        if text[at] == "(":
            closed = groups(text[at:])
            if not closed:
                return False
            at += closed[0][1] + 1
            continue
        match = QUALIFIER.match(text, at)
        if not match:
            return False
        at = match.end()
    return True


def strip_template(head):
    """Without attributes and template parameters, whose `class` and parentheses would mislead."""
    head = re.sub(
        r"\balignas\s*\([^()]*(?:\([^()]*\))?[^()]*\)|\[\[.*?\]\]|__attribute__\s*\(\(.*?\)\)",
        " ",
        head,
    )
    while match := re.match(r"\s*template\s*<", head):
        depth, at = 1, match.end()
        while at < len(head) and depth:
            depth += {"<": 1, ">": -1}.get(head[at], 0)
            at += 1
        head = head[at:]
    return head


def matching(code, opening):
    """Where the brace that opens at `opening` is closed."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, opening):
        depth += 1 if match.group(0) == "{" else -1
        if depth == 0:
            return match.start()
    return len(code) - 1


def groups(text):
    """The outermost parentheses: (start, end) pairs, both on the parenthesis."""
    depth, start, found = 0, 0, []
    for at, char in enumerate(text):
        if char == "(":
            if depth == 0:
                start = at
            depth += 1
        elif char == ")" and depth:
            depth -= 1
            if depth == 0:
                found.append((start, at))
    return found


def as_function(code, start, opening, end):
    """The function whose head is code[start:opening], or None when that is something else."""
    head = code[start:opening]
    top = strip_parentheses(strip_template(head))
    if re.search(
        r"(?<![=!<>])=(?!=)\s*(?!\w*\s*delete|default)",
        re.sub(r"operator\s*[=!<>+*/&|^-]+", "operator", top),
    ):
        return None  # a variable: its initialiser may hold lambdas, but is no function
    for first, last in groups(head):
        name = re.search(
            r"((?:[\w~:]|operator\s*[^\s\w(]+|operator\s*\(\s*\)|operator\s*\w+)+)\s*$",
            head[:first],
        )
        if not name and not head[:first].rstrip().endswith(")"):
            continue
        name = name.group(1) if name else "operator()"
        if name.split("::")[-1] in NOT_PARAMETERS or (
            name.endswith("operator") and last == first + 1
        ):
            continue
        if not only_qualifiers(head[last + 1 :]):
            continue
        line = code.count("\n", 0, start + len(head) - len(head.lstrip())) + 1
        lines = code.count("\n", 0, end) + 1 - line + 1
        return Function(name, line, lines, count_parameters(head[first + 1 : last]))
    return None


def strip_parentheses(text):
    kept, last = [], 0
    for first, end in groups(text):
        kept.append(text[last:first])
        last = end + 1
    return "".join(kept) + text[last:]


def count_parameters(text):
    if text.strip() in ("", "void"):
        return 0
    depth, commas = 0, 0
    for at, char in enumerate(text):
        if char in "(<[{":
            depth += 1
        elif char in ")]}" or (char == ">" and text[at - 1] != "-"):
            depth -= 1
        elif char == "," and depth == 0:
            commas += 1
    return commas + 1
