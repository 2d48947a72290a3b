# SPDX-License-Identifier: MIT
"""The layer rule: a folder of src/ includes only folders below it (cmake/layers.txt), and its build
file names them."""

import functools
import re

from .tree import Finding

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
LAYER_CALL = re.compile(r"verbena_layer\s*\(([^)]*)\)")
KEYWORDS = {
    "NAME",
    "TIMEOUT",
    "DEPENDS",
    "LIBRARIES",
    "EXCLUDE",
    "TEST_DEPENDS",
    "TEST_LIBRARIES",
    "LABELS",
}


@functools.lru_cache(maxsize=None)
def heights(tree):
    """Folder to its height; a larger number is higher."""
    found = {}
    height = 0
    for line in (tree.root / "cmake/layers.txt").read_text().splitlines():
        if line and line[0].isdigit():
            height += 1
            found.update((folder, height) for folder in line.split()[1:])
    return found


def folder_of(path):
    """The folder of src/ that the path lies in, or None."""
    parts = path.split("/")
    return parts[1] if parts[0] == "src" and len(parts) > 2 else None


def includes(tree, path):
    for number, line in enumerate(tree.lines(path), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1)


def layer_rule(tree):
    height = heights(tree)
    for path in tree.cpp("src/"):
        folder = folder_of(path)
        if folder is None:
            yield Finding(
                path, 1, "layer", "source files lie in a folder of src/, not in src/ itself"
            )
            continue
        if folder not in height:
            yield Finding(path, 1, "layer", f"src/{folder} is not in cmake/layers.txt")
            continue
        for number, target in includes(tree, path):
            other = target.split("/")[0]
            if other != folder and other in height and height[other] >= height[folder]:
                yield Finding(
                    path,
                    number,
                    "layer",
                    f"{folder} may not include {target}: {other} is not below it",
                )


def include_paths(tree):
    """Quoted includes are written from src/ or include/, outside of src/ also from the file's own
    folder or the top one (tests/, examples/), and exist.
    """
    for path in tree.cpp():
        places = ["src", "include"]
        if not path.startswith("src/"):
            places += [path.split("/")[0], path.rsplit("/", 1)[0]]
        for number, target in includes(tree, path):
            if ".." in target.split("/") or target.startswith("./"):
                yield Finding(path, number, "include", f'"{target}": write the path from src/')
            elif not any((tree.root / place / target).is_file() for place in places):
                yield Finding(path, number, "include", f'"{target}": no such file in src/')


def build_files(tree):
    """Folder to (DEPENDS, TEST_DEPENDS) of its verbena_layer call."""
    found = {}
    for path in tree.all_paths:
        if not (path.startswith("src/") and path.endswith("/CMakeLists.txt")):
            continue
        text = re.sub(r"#[^\n]*", "", tree.text(path))
        for call in LAYER_CALL.finditer(text):
            values = {}
            keyword = None
            for word in call.group(1).split():
                if word in KEYWORDS:
                    keyword = word
                else:
                    values.setdefault(keyword, []).append(word)
            name = values.get("NAME", ["?"])[0]
            found[name] = (path, values.get("DEPENDS", []), values.get("TEST_DEPENDS", []))
    return found


def closure(found, names):
    """Everything that the names stand on, themselves included."""
    reached, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo.extend(found.get(name, ("", [], []))[1])
    return reached


def build_dependencies(tree):
    height = heights(tree)
    found = build_files(tree)
    for name, (path, depends, test_depends) in found.items():
        for other in depends + test_depends:
            if name not in height or height.get(other, 0) >= height[name]:
                yield Finding(
                    path,
                    1,
                    "build-layer",
                    f"{name} may not depend on {other}, which is not below it",
                )
    for folder in sorted({folder_of(path) for path in tree.cpp("src/")} - {None} - set(found)):
        yield Finding(
            f"src/{folder}/CMakeLists.txt",
            1,
            "build-layer",
            f"missing, or without verbena_layer(NAME {folder} ...)",
        )
    for path in tree.cpp("src/"):
        folder = folder_of(path)
        if folder not in height or folder not in found:
            continue
        _, depends, test_depends = found[folder]
        allowed = closure(found, depends + (test_depends if path.endswith("_test.cc") else []))
        for number, target in includes(tree, path):
            other = target.split("/")[0]
            if other in height and other != folder and other not in allowed:
                yield Finding(
                    path,
                    number,
                    "build-layer",
                    f"includes {target}, but DEPENDS of src/{folder} does not reach {other}",
                )


CHECKS = [("layer", layer_rule), ("include", include_paths), ("build-layer", build_dependencies)]
