#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Real programs under the preload: they find the files of a tree below /sys and /dev.

Usage: run_preload.py BUILD_FOLDER. Prints what fails, and closes with `N passed, N failed`.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

DEVICES = ("vrb_test0", "vrb_test1")


def make_tree(root):
    """The shape that `verbena run` makes, with two devices."""
    for index, name in enumerate(DEVICES):
        hardware = root / "sys/devices/verbena" / name
        rdma = hardware / "infiniband" / name
        rdma.mkdir(parents=True)
        (rdma / "node_type").write_text("1: CA\n")
        (rdma / "device").symlink_to(f"../../../{name}")
        (hardware / "numa_node").write_text("-1\n")
        for folder, target, link in (
            ("sys/class/infiniband", f"../../devices/verbena/{name}/infiniband/{name}", name),
            ("dev/infiniband", "/dev/null", f"uverbs{index}"),
        ):
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / folder / link).symlink_to(target)


class Preload:
    def __init__(self, build, tree):
        self.build = pathlib.Path(build)
        self.library = self.build / "lib/libverbena-preload.so"
        self.environment = dict(
            os.environ, LD_PRELOAD=str(self.library), VERBENA_SYSFS=str(tree), LC_ALL="C"
        )
        self.passed = self.failed = 0

    def run(self, command, **environment):
        if not shutil.which(command[0]):
            return subprocess.CompletedProcess(command, 127, f"{command[0]} is not installed")
        return subprocess.run(
            command, env=dict(self.environment, **environment), text=True, timeout=60,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )

    def note(self, name, problem):
        if problem:
            self.failed += 1
            print(f"{name}: {problem}")
        else:
            self.passed += 1

    def expect(self, name, command, *, has=(), lacks=(), status=0, **environment):
        result = self.run(command, **environment)
        problems = [f"lacks {text!r}" for text in has if text not in result.stdout]
        problems += [f"has {text!r}" for text in lacks if text in result.stdout]
        if result.returncode != status:
            problems.append(f"status {result.returncode}, not {status}")
        self.note(name, f"{', '.join(problems)} in:\n{result.stdout}" if problems else None)


def shell_programs(preload, tree):
    preload.expect(
        "ls -l of devices", ["ls", "-l", "/sys/class/infiniband"],
        has=["vrb_test0 -> ../../devices/verbena/vrb_test0/infiniband/vrb_test0", "vrb_test1"],
        lacks=["cannot", str(tree)],
    )
    preload.expect(
        "ls -l of nodes", ["ls", "-l", "/dev/infiniband"], has=["crw-rw-rw-", "1, 3", "uverbs1"],
        lacks=["null", "cannot"],
    )
    preload.expect("ls of another folder", ["ls", "/sys/class"], has=["net"], lacks=["vrb_"])
    preload.expect(
        "ls of a look-alike", ["ls", "/sys/class/infinibandX"], has=["No such file"], status=2
    )
    preload.expect(
        "cat", ["cat", "/sys/class/infiniband/vrb_test0/node_type"], has=["1: CA\n"]
    )
    preload.expect(
        "find", ["find", "/sys/class/infiniband/", "/dev/infiniband"],
        has=["/sys/class/infiniband/vrb_test1\n", "/dev/infiniband/uverbs0\n"], lacks=[str(tree)],
    )
    preload.expect(
        "find through links", ["find", "/sys/class/infiniband/vrb_test0/", "-name", "node_type"],
        has=["/sys/class/infiniband/vrb_test0/node_type\n"],
    )
    preload.expect(
        "stat", ["stat", "-c", "%F %A", "/dev/infiniband/uverbs0"],
        has=["character special file crw-rw-rw-"],
    )
    preload.expect(
        "realpath", ["realpath", "/sys/class/infiniband/vrb_test0/device"],
        has=["/sys/devices/verbena/vrb_test0\n"], lacks=[str(tree)],
    )
    # The shell's own expansion, test and redirection.
    script = (
        "set -e; echo /sys/class/infiniband/*/node_type; test -c /dev/infiniband/uverbs0; "
        "test -w /dev/infiniband/uverbs0; read -r type < /sys/class/infiniband/vrb_test0/node_type;"
        " echo \"[$type]\"; cd /sys/class/infiniband/vrb_test1; cat node_type"
    )
    for shell in ("bash", "dash"):
        preload.expect(
            shell, [shell, "-c", script],
            has=["/sys/class/infiniband/vrb_test1/node_type", "[1: CA]", "]\n1: CA\n"],
        )
    preload.expect(
        "no write", ["dash", "-c", "echo x > /sys/class/infiniband/vrb_test0/node_type"],
        has=["Permission denied"], status=2,
    )


def python_program(preload):
    program = """
import glob, os, stat
top = "/sys/class/infiniband"
assert sorted(os.listdir(top)) == ["vrb_test0", "vrb_test1"]
assert sorted(e.name for e in os.scandir(top) if e.is_dir()) == ["vrb_test0", "vrb_test1"]
assert os.path.exists(top + "/vrb_test0/device/numa_node")
assert not os.path.exists(top + "/vrb_test2")
assert stat.S_ISCHR(os.stat("/dev/infiniband/uverbs0").st_mode)
assert os.access("/dev/infiniband/uverbs0", os.R_OK | os.W_OK)
assert os.path.realpath(top + "/vrb_test0/device") == "/sys/devices/verbena/vrb_test0"
assert len(glob.glob(top + "/*/node_type")) == 2
assert [files for _, _, files in os.walk("/dev/infiniband")][0]
assert open(top + "/vrb_test1/node_type").read() == "1: CA\\n"
assert os.listdir("/proc/self") and os.path.isdir("/sys/class")
os.execv("/usr/bin/env", ["env", "ls", top])
"""
    preload.expect("python", ["/usr/bin/python3", "-c", program], has=["vrb_test0\nvrb_test1\n"])


def own_programs(preload):
    early = preload.build / "bin/test/preload_early.so"
    both = f"{preload.library}:{early}"
    for name in ("preload_calls", "preload_calls_fortified"):
        preload.expect(
            name, [str(preload.build / "bin/test" / name)], has=[" hold, 0 do not"], LD_PRELOAD=both
        )
    fortified = preload.build / "bin/test/preload_calls_fortified"
    wanted = {"__open_2", "__openat_2", "__readlink_chk"}
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", fortified], check=True, capture_output=True, text=True
    ).stdout
    lacking = [name for name in wanted if f" {name}@" not in symbols]
    preload.note("the fortified program calls fortified functions", ", ".join(lacking))


def without_tree(preload):
    command = ["ls", "/sys/class/infiniband"]
    plain = subprocess.run(
        command, env=dict(os.environ, LC_ALL="C"), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False,
    )
    for name, value in (("empty", ""), ("relative", "some/folder"), ("long", "/" + "x" * 5000)):
        result = preload.run(command, VERBENA_SYSFS=value)
        same = (result.returncode, result.stdout) == (plain.returncode, plain.stdout)
        preload.note(f"{name} VERBENA_SYSFS", None if same else result.stdout)
    preload.expect("a tree that is gone", command, has=["No such file"], status=2,
                   VERBENA_SYSFS="/nowhere/at/all")


def readers_of_sysfs(preload):
    """A missing program is a failure: scripts/setup installs it (hwloc-nox)."""
    preload.expect(
        "hwloc", ["lstopo-no-graphics", "--of", "console"], has=['OpenFabrics "vrb_test0"']
    )


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder).resolve() / "tree"
        make_tree(tree)
        preload = Preload(pathlib.Path(sys.argv[1]).resolve(), tree)
        shell_programs(preload, tree)
        python_program(preload)
        own_programs(preload)
        without_tree(preload)
        readers_of_sysfs(preload)
    print(f"{preload.passed} passed, {preload.failed} failed")
    return 1 if preload.failed else 0


if __name__ == "__main__":
    sys.exit(main())
