#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""`verbena run`, `ls`, `env` and `config` as a person or a script uses them.

Usage: run_cli.py BUILD_FOLDER. Prints what fails, and closes with `N passed, N failed`.
"""

import ipaddress
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile

from harness import Verbena


def exit_statuses(verbena):
    for status in (0, 1, 3, 125, 255):
        result = verbena("run", "--", "sh", "-c", f"exit {status}")
        verbena.check(f"status {status}", result.returncode == status, result)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        result = verbena("run", "--", "sh", "-c", f"kill -{number.value} $$")
        verbena.check(f"{number.name}", result.returncode == -number, result)
    result = verbena("run", "--", "no-such-program-anywhere")
    verbena.check("not found is 127", result.returncode == 127, result)
    verbena.check("not found says what", "no-such-program-anywhere" in result.stderr, result)
    result = verbena("run", "--", "/proc/self/status")
    verbena.check("not executable is 126", result.returncode == 126, result)
    for words in (["run"], ["run", "--"], ["run", "--no-such-option", "true"], ["run", "--log"]):
        result = verbena(*words)
        verbena.check(f"{words} is 125", result.returncode == 125 and result.stderr, result)
    for words in ([], ["no-such-command"], ["ls", "--no-such-option"], ["ls", "surplus"]):
        result = verbena(*words)
        verbena.check(f"{words} is 2", result.returncode == 2 and result.stderr, result)
    result = verbena("run", "--help")
    helped = result.returncode == 0 and "PROGRAM" in result.stdout
    verbena.check("help is no failure", helped, result)


def arguments(verbena):
    words = ["a  b", "", "*", "--help", "-v", "--", "--log", "ä'\"$x"]
    show = "import sys, json; print(json.dumps(sys.argv[1:]))"
    for way in (["run", "--"], ["run"], ["run", "--log", "none"], ["run", "--log=none", "--"]):
        result = verbena(*way, "/usr/bin/python3", "-c", show, *words)
        verbena.check(f"{way} keeps arguments", result.stdout.strip() == json.dumps(words), result)


def what_the_program_sees(verbena):
    environment = {"LD_LIBRARY_PATH": "/first:/second", "LD_PRELOAD": "", "KEPT": "a b"}
    result = verbena("run", "env", "-0", environment=environment)
    seen = dict(line.split("=", 1) for line in result.stdout.split("\0") if line)
    folder = str(verbena.build / "lib")
    verbena.check("library path", seen["LD_LIBRARY_PATH"] == f"{folder}:/first:/second", seen)
    verbena.check("preload", seen["LD_PRELOAD"] == f"{folder}/libverbena-preload.so", seen)
    verbena.check("other variables stay", seen["KEPT"] == "a b", seen)
    result = verbena("run", verbena.program, "run", "--log", "warn", "env", "-0")
    nested = dict(line.split("=", 1) for line in result.stdout.split("\0") if line)
    verbena.check("nesting adds nothing", nested["LD_LIBRARY_PATH"] == folder, nested)
    verbena.check("an option sets its variable", nested["VERBENA_LOG"] == "warn", nested)
    result = verbena("run", "cat", stdin=None, input="through\n")
    verbena.check("standard input is the program's", result.stdout == "through\n", result)
    # The program replaces `verbena`: signals reach it, and no process stays between.
    result = verbena("run", "sh", "-c", "cat /proc/$PPID/comm")
    verbena.check("nothing stays between", result.stdout.strip().startswith("python"), result)
    result = verbena("env")
    script = f'eval "$1"; exec {shutil.which("ls")} /sys/class/infiniband'
    listed = subprocess.run(
        ["sh", "-c", script, "sh", result.stdout], env=verbena.environment, text=True,
        capture_output=True, check=False,
    )
    verbena.check("env is for a shell", listed.stdout == verbena(
        "run", "ls", "/sys/class/infiniband").stdout != "", listed)


def devices(verbena):
    result = verbena("ls", "--json")
    listed = json.loads(result.stdout)["devices"]
    names = [device["name"] for device in listed]
    verbena.check("there is a device", "vrb_lo" in names, result)
    verbena.check("lo comes last", names[-1] == "vrb_lo", result)
    interfaces = os.listdir("/sys/class/net")
    for device in listed:
        name = device["interface"]
        verbena.check(f"{name} exists", name in interfaces and device["name"] == f"vrb_{name}")
        mtu = int(pathlib.Path(f"/sys/class/net/{name}/mtu").read_text())
        verbena.check(f"{name} has this MTU", device["interface_mtu"] == mtu, device)
        verbena.check(f"{name}: packets fit", device["mtu"] < mtu, device)
        for number, gid in enumerate(device["gids"]):
            address = ipaddress.ip_address(gid["address"])
            wide = ipaddress.ip_address(gid["gid"])
            narrow = getattr(wide, "ipv4_mapped", None) or wide
            verbena.check(f"{name} GID {number}", gid["index"] == number and narrow == address, gid)
    table = verbena("ls")
    verbena.check("the table has them too", all(name in table.stdout for name in names), table)
    result = verbena("run", "ls", "/sys/class/infiniband")
    verbena.check("sysfs has them too", sorted(result.stdout.split()) == sorted(names), result)
    result = verbena("run", "ibv_devices")
    found = re.findall(r"^\s+(v\S+)\s+([0-9a-f]{16})$", result.stdout, re.MULTILINE)
    wanted = [(device["name"], device["guid"].replace(":", "")) for device in listed]
    verbena.check("ibv_devices has them too", found == wanted, result)
    result = verbena("run", "ibstat", "-l")
    verbena.check("ibstat has them too", sorted(result.stdout.split()) == sorted(names), result)
    result = verbena("run", "ibstat", "vrb_lo")
    verbena.check("ibstat shows the port", re.search(r"State: Active\s+Physical state: LinkUp",
                                                     result.stdout), result)
    for device in listed:
        show_gids(verbena, device)


def chosen_devices(verbena):
    for words in (["--devices", "lo"], ["--devices=lo"]):
        result = verbena("run", *words, "--", "ls", "/sys/class/infiniband")
        verbena.check(f"{words} leaves one", result.stdout.split() == ["vrb_lo"], result)
    every = json.loads(verbena("ls", "--all", "--json").stdout)["devices"]
    usual = json.loads(verbena("ls", "--json").stdout)["devices"]
    names = {device["name"] for device in every}
    verbena.check("--all has more", names >= {device["name"] for device in usual}, names)
    wanted = {f"vrb_{name}" for name in os.listdir("/sys/class/net")
              if pathlib.Path(f"/sys/class/net/{name}/mtu").exists()}
    verbena.check("--all has all", names == wanted, (names, wanted))


def show_gids(verbena, device):
    """libibverbs and sysfs agree on the GIDs."""
    top = f"/sys/class/infiniband/{device['name']}/ports/1"
    show = "echo $n $(cat $n) $(cat ../gid_attrs/types/$n)"
    script = f"cd {top}/gids && for n in *; do {show}; done"
    result = verbena("run", "sh", "-c", script)
    wanted = sorted(f"{gid['index']} {gid['gid']} RoCE v2" for gid in device["gids"])
    gids = sorted(result.stdout.splitlines())
    verbena.check(f"sysfs has GIDs of {device['name']}", gids == wanted, result)
    net = verbena("run", "ls", f"/sys/class/infiniband/{device['name']}/device/net/")
    verbena.check("device/net names the interface", net.stdout.strip() == device["interface"], net)


def tree_store(verbena, runtime):
    """The tree is the user's alone, shared, repaired, and put elsewhere where it cannot be."""
    store = runtime / f"verbena-{os.geteuid()}"
    shutil.rmtree(store)
    first = verbena("run", "sh", "-c", "echo $VERBENA_SYSFS").stdout.strip()
    verbena.check("the tree is where it should be", pathlib.Path(first).parent == store, first)
    verbena.check("the store is private", stat.S_IMODE(store.stat().st_mode) == 0o700)
    again = verbena("run", "sh", "-c", "echo $VERBENA_SYSFS").stdout.strip()
    verbena.check("the tree is shared", again == first and len(list(store.iterdir())) == 1)
    shutil.rmtree(pathlib.Path(first) / "sys/class/infiniband_verbs")
    result = verbena("run", "ls", "/sys/class/infiniband_verbs")
    verbena.check("a damaged tree is made again", "uverbs0" in result.stdout, result)
    verbena.check("nothing stays of that", len(list(store.iterdir())) == 1, os.listdir(store))
    store.chmod(0o777)
    verbena("run", "true")
    verbena.check("the store is made private", stat.S_IMODE(store.stat().st_mode) == 0o700)
    for number in range(70):
        (store / f"1-{number:016x}").mkdir()
        os.utime(store / f"1-{number:016x}", (number, number))
    shutil.rmtree(first)
    verbena("run", "true")
    left = os.listdir(store)
    is_bounded = len(left) == 64 and pathlib.Path(first).name in left
    verbena.check("the store is bounded", is_bounded, left)
    with tempfile.TemporaryDirectory() as elsewhere:
        shutil.rmtree(store)
        victim = pathlib.Path(elsewhere) / "victim"
        victim.mkdir()
        store.symlink_to(victim)
        result = verbena("run", "sh", "-c", "echo $VERBENA_SYSFS")
        verbena.check("no link is followed", not list(victim.iterdir()), result)
        verbena.check("another place is taken", result.stdout.strip().startswith("/tmp/"), result)
        store.unlink()


def nowhere_to_write(verbena):
    """Where no tree can be made, programs run all the same, and one line says what they miss."""
    if verbena.program.startswith(("/tmp/", "/dev/shm/")):
        print("SKIP read-only file systems: the build lies in one of them")
        return
    script = (
        "mount -t tmpfs -o ro none /tmp && mount -t tmpfs -o ro none /dev/shm || exit 77;"
        f"{verbena.program} run ibv_devices && {verbena.program} run --log none true"
    )
    environment = dict(verbena.environment, XDG_RUNTIME_DIR="/proc")
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], text=True,
        env=environment, capture_output=True, check=False,
    )
    if result.returncode == 77 or "unshare failed" in result.stderr:
        print(f"SKIP read-only file systems: cannot make them here: {result.stderr.strip()}")
        return
    verbena.check("the program runs", result.returncode == 0 and "vrb_lo" in result.stdout, result)
    verbena.check("one warning", result.stderr.count("\n") == 1 and "Read-only" in result.stderr,
                  result)


def other_places(verbena, scratch):
    """The build works when it is moved, also to a folder with a blank in its name."""
    moved = scratch / "moved here"
    (moved / "bin").mkdir(parents=True)
    (moved / "lib").mkdir()
    for name in ("libibverbs.so", "libibverbs.so.1", "libverbena-preload.so"):
        shutil.copy2(verbena.build / "lib" / name, moved / "lib" / name)
    shutil.copy2(verbena.program, moved / "bin/verbena")
    result = subprocess.run(
        [str(moved / "bin/verbena"), "run", "ls", "/sys/class/infiniband"], text=True,
        env=verbena.environment, capture_output=True, check=False,
    )
    verbena.check("a blank in the path", "vrb_lo" in result.stdout and not result.stderr, result)
    (moved / "lib/libverbena-preload.so").unlink()
    result = subprocess.run(
        [str(moved / "bin/verbena"), "run", "true"], text=True, env=verbena.environment,
        capture_output=True, check=False,
    )
    verbena.check("an incomplete build says so", result.returncode == 125 and
                  "libverbena-preload.so" in result.stderr, result)


def settings(verbena):
    """`verbena config` has every variable that the sources read."""
    listed = {entry["variable"] for entry in
              json.loads(verbena("config", "--json").stdout)["settings"]}
    text = verbena("config").stdout
    verbena.check("text and JSON agree", all(name in text for name in listed), text)
    sources = pathlib.Path(__file__).resolve().parents[2] / "src"
    read = set()
    for path in [*sources.rglob("*.cc"), *sources.rglob("*.h")]:
        is_test = path.name.endswith("_test.cc") or path.name.startswith("test_")
        if not is_test and path.parent.name != "cli":
            read.update(re.findall(r'"(VERBENA_[A-Z_]+)=?"', path.read_text()))
    for name in sorted(read ^ {name for name in listed if name.startswith("VERBENA_")}):
        where = "not listed" if name in read else "listed, but nobody reads it"
        verbena.check(f"{name} is {where}", False)
    verbena.check("there are settings", len(listed) >= 2)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder).resolve()
        runtime = scratch / "runtime"
        runtime.mkdir()
        verbena = Verbena(sys.argv[1], runtime)
        exit_statuses(verbena)
        arguments(verbena)
        what_the_program_sees(verbena)
        devices(verbena)
        chosen_devices(verbena)
        tree_store(verbena, runtime)
        nowhere_to_write(verbena)
        other_places(verbena, scratch)
        settings(verbena)
    return verbena.summary()


if __name__ == "__main__":
    sys.exit(main())
