# SPDX-License-Identifier: MIT
"""The machine: which two cores are used, what its caches hold, and its description."""

import contextlib
import hashlib
import os
import pathlib
import platform
import re
import subprocess

CPUS = pathlib.Path("/sys/devices/system/cpu")


class Unfit(Exception):
    """Nothing can be measured here; says why."""


def read(path):
    with contextlib.suppress(OSError):
        return pathlib.Path(path).read_text(encoding="utf-8", errors="replace").strip()
    return ""


def cpu_list(text):
    """The numbers of `0-3,8`."""
    numbers = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def size_of(text):
    """The bytes of `1024K`."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0


def caches(core):
    """Level to (bytes, the cores that share it) of the data caches of a core."""
    found = {}
    for folder in sorted(CPUS.glob(f"cpu{core}/cache/index*")):
        if read(folder / "type") in ("Data", "Unified"):
            shared = cpu_list(read(folder / "shared_cpu_list"))
            found[int(read(folder / "level") or 0)] = (size_of(read(folder / "size")), shared)
    return found


def choose_cores(wanted=None):
    """Two cores, (server's, client's): not two threads of one core, and sharing the largest cache
    where two such are free to use."""
    allowed = sorted(os.sched_getaffinity(0))
    if wanted:
        try:
            pair = tuple(int(word) for word in wanted.split(","))
        except ValueError as error:
            raise Unfit(f"--cores takes two numbers, such as 0,1: {wanted}") from error
        if len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= set(allowed):
            raise Unfit(f"--cores takes two different ones of {allowed}: {wanted}")
        return pair
    pairs = []
    for first in allowed:
        siblings = cpu_list(read(CPUS / f"cpu{first}/topology/thread_siblings_list"))
        shared = set().union(*(shared for _, shared in caches(first).values()))
        for second in allowed:
            if second > first and second not in siblings:
                pairs.append((second not in shared, first, second))
    if not pairs:
        raise Unfit(f"both programs spin, so two cores are needed; there are {allowed}")
    return min(pairs)[1:]


def private_cache(core):
    """The bytes of the largest cache that this core has for itself, 0 if unknown."""
    siblings = cpu_list(read(CPUS / f"cpu{core}/topology/thread_siblings_list")) or {core}
    return max((size for size, shared in caches(core).values() if shared <= siblings), default=0)


def field(text, name):
    match = re.search(rf"^{name}\s*[:=]\s*\"?(.*?)\"?$", text, re.MULTILINE)
    return match[1] if match else ""


def said(command):
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def version(package):
    return said(["dpkg-query", "-W", "-f", "${Version}", package]) or "unknown version"


def digest(file):
    """Which build was measured: the source may have moved on since."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    return "unknown"


def commit(root):
    found = said(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"])
    changed = said(["git", "-C", str(root), "status", "--porcelain", "-uno"])
    return (found or "unknown") + (" and changes" if changed else "")


def describe(root, build, cores, ticks_per_us):
    """What a reader has to know of the machine, (name, text) pairs."""
    cpu = read("/proc/cpuinfo")
    memory = int(field(read("/proc/meminfo"), "MemTotal").split()[0]) / (1 << 20)
    held = [
        f"L{level} {size >> 10:,} KiB{'' if len(shared) == 1 else ' shared'}"
        for level, (size, shared) in sorted(caches(cores[1]).items())
    ]
    virtual = " (virtual machine)" if " hypervisor" in field(cpu, "flags") else ""
    model = field(cpu, "model name") or platform.machine()
    if family := field(cpu, "cpu family"):
        model += f", family {family} model {field(cpu, 'model')}"
    return [
        ("processor", f"{model}, {os.cpu_count()} cores{virtual}"),
        ("caches of a core", ", ".join(held) or "unknown"),
        ("cores used", f"server {cores[0]}, client {cores[1]}"),
        ("time stamps", f"{ticks_per_us:.1f} MHz"),
        ("memory", f"{memory:.1f} GiB"),
        ("system", f"{field(read('/etc/os-release'), 'PRETTY_NAME')}, Linux {platform.release()}"),
        ("programs", f"perftest {version('perftest')}, UCX {version('ucx-utils')}"),
        ("Verbena", f"libibverbs.so.1 with SHA-256 {digest(build / 'lib/libibverbs.so.1')}..."),
        ("source", f"commit {commit(root)}"),
    ]
