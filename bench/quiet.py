# SPDX-License-Identifier: MIT
"""Tells whether the machine is busy with something else than what is measured.

Before a round nothing of ours runs, so the cores have to be idle. During a round the CPU time that
the cores spent is compared with what our own processes took: the rest was somebody else's. The load
average is only shown: it decays over minutes and holds our own rounds as well.
"""

import os
import resource
import time
from typing import NamedTuple

GAP = 0.2  # seconds of looking before a round
FOREIGN = 0.04  # of the two cores' time, spent by others
ELSEWHERE = 0.5  # of the other cores' time: they share cache, memory and clock rate with ours
STOLEN = 0.01  # of the two cores' time, taken by the host of a virtual machine
TICKS = 3  # /proc/stat counts in ticks: so many may be wrong
WAITING = 1.5  # processes that want a core on average, the bench itself among them


class Times(NamedTuple):
    """CPU time so far, in seconds."""

    clock: float
    ours: float  # the bench and its children
    busy: float  # on the cores that we use
    stolen: float
    busy_elsewhere: float
    cores_elsewhere: int


def core_times(text):
    """Core to (busy, stolen) ticks, of /proc/stat."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if words and words[0].startswith("cpu") and words[0] != "cpu":
            user, nice, system, _idle, _wait, irq, softirq, stolen = map(int, words[1:9])
            found[int(words[0][3:])] = (user + nice + system + irq + softirq, stolen)
    return found


def times(cores):
    with open("/proc/stat", encoding="ascii") as file:
        found = core_times(file.read())
    ours = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        ours += usage.ru_utime + usage.ru_stime
    tick = 1 / os.sysconf("SC_CLK_TCK")
    return Times(
        clock=time.monotonic(),
        ours=ours,
        busy=sum(found[core][0] for core in cores) * tick,
        stolen=sum(found[core][1] for core in cores) * tick,
        busy_elsewhere=sum(busy for core, (busy, _) in found.items() if core not in cores) * tick,
        cores_elsewhere=len(found) - len(cores),
    )


def disturbances(before, after, cores, tick=None):
    """Why what was measured between the two is worth nothing; empty when it is worth something."""
    tick = tick or 1 / os.sysconf("SC_CLK_TCK")
    seconds = (after.clock - before.clock) * len(cores)
    reasons = []
    foreign = (after.busy - before.busy) - (after.ours - before.ours)
    if foreign > FOREIGN * seconds + TICKS * tick:
        reasons.append(
            f"others took {foreign:.2f} s of the {seconds:.2f} s of cores {cores[0]} and {cores[1]}"
        )
    stolen = after.stolen - before.stolen
    if stolen > STOLEN * seconds + tick:
        reasons.append(f"the host of this virtual machine took {stolen:.2f} s of {seconds:.2f} s")
    elsewhere = after.busy_elsewhere - before.busy_elsewhere
    room = (after.clock - before.clock) * after.cores_elsewhere
    if elsewhere > ELSEWHERE * room + TICKS * tick:
        reasons.append(f"the other cores were busy for {elsewhere:.2f} s of {room:.2f} s")
    return reasons


def runnable():
    """How many processes want a core at this moment."""
    with open("/proc/loadavg", encoding="ascii") as file:
        return int(file.read().split()[3].split("/")[0])


def look(cores, seconds=GAP):
    """Watches the machine while nothing of ours runs; returns the reasons not to measure now."""
    before = times(cores)
    samples = []
    while time.monotonic() < before.clock + seconds:
        time.sleep(0.01)
        samples.append(runnable())
    reasons = disturbances(before, times(cores), cores)
    waiting = sum(samples) / len(samples)
    # On a machine of many cores, work elsewhere is judged by its share above.
    if before.cores_elsewhere == 0 and waiting > WAITING:
        reasons.append(f"{waiting - 1:.1f} other processes want a core")
    return reasons


def await_quiet(cores, seconds):
    """Waits for the machine to be quiet; returns the reasons when it is not after that time."""
    until = time.monotonic() + seconds
    while reasons := look(cores, 2 * GAP):
        if time.monotonic() >= until:
            return reasons
        time.sleep(0.5)
    return []
