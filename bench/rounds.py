# SPDX-License-Identifier: MIT
"""Carries out a step: a first run of each measurement, which does not count and tells how often it
has to be done, then rounds of all of them in turn. A round during which the machine was busy with
something else, or changed, is thrown away, whatever it measured, and taken again, a few times. The
rounds that are put together found the cores equally far from each other."""

import statistics
import time
from typing import NamedTuple

from . import process, quiet
from .measurements import CMTIME_PAIR, LIMITS, LINE, PORT, TIMES, VERBENA
from .parsers import Misread

TIMEOUT = 60  # seconds for one run

# The host of a virtual machine moves its cores: a cache line from one to the other has been seen to
# take 55 ns, 240 a moment later, and 55 again, and everything takes its time by that. Both sides of
# a comparison have to find the same.
PROBE_TIMES = 30_000
MOVED = 1.5


class Settings(NamedTuple):
    rounds: int
    cores: tuple  # the server's, the client's
    words: dict  # what stands in commands
    ticks_per_us: float
    force: bool  # go on when the machine is busy
    patience: float  # seconds to wait for it to become quiet
    say: callable  # progress


class Busy(Exception):
    """The machine is busy with something else; the text says how."""


class StepResult(NamedTuple):
    figures: dict  # name of the measurement to its figures, one a round
    commands: dict  # to the client's command
    line_ns: list  # what a cache line took during each round
    disturbed: tuple  # why rounds were thrown away, or with force were not


def fill(command, words):
    return tuple(words.get(word, word) for word in map(str, command))


def measure(measurement, times, settings):
    """Runs it once. Returns its figure."""
    words = {**settings.words, PORT: str(process.free_port()), TIMES: str(times)}
    server = fill(measurement.server, words) if measurement.server else None
    client = fill(measurement.client, words)
    environment = dict(measurement.environment)
    text = process.run(server, client, environment, int(words[PORT]), TIMEOUT)
    try:
        return measurement.parse(text, measurement.size, settings.ticks_per_us)
    except Misread as error:
        said = "\n".join(f"  stdout: {line}" for line in text.strip().splitlines()[-15:])
        raise process.Failed(
            f"cannot read what a program printed: {error}\n"
            f"{process.shown(client, environment)}\n{said}"
        ) from error


def calibrate(measurement, settings):
    """How often it has to be done. The second try, after a first that was much too short, sees it
    at speed."""
    times = measurement.least
    for _ in range(2):
        wanted = measurement.times_for(measure(measurement, times, settings))
        if wanted <= 4 * times:
            return wanted
        times = wanted
    return times


def commands(step, times, settings):
    """The clients' commands as one may type them."""
    words = {
        **settings.words,
        PORT: "PORT",
        VERBENA: "verbena",
        LIMITS: "bench_limits",
        CMTIME_PAIR: "bench/cmtime_pair",
    }
    return {
        m.name: process.shown(
            fill(m.client, {**words, TIMES: str(times[m.name])}), dict(m.environment)
        )
        for m in step.measurements
    }


def probe(settings):
    """How far the two cores are from each other at this moment, in nanoseconds."""
    return measure(LINE, PROBE_TIMES, settings)


def moved(probes):
    if max(probes) <= MOVED * min(probes):
        return []
    return [f"the cores moved: a cache line took from {min(probes):.0f} to {max(probes):.0f} ns"]


def one_round(step, times, settings):
    """The figures of a round, the probes between them, and why they are worth nothing."""
    reasons = quiet.look(settings.cores)
    if reasons and not settings.force:
        return None, None, reasons
    before = quiet.times(settings.cores)
    figures, probes = {}, [probe(settings)]
    for m in step.measurements:
        figures[m.name] = measure(m, times[m.name], settings)
        probes.append(probe(settings))
    after = quiet.times(settings.cores)
    reasons += quiet.disturbances(before, after, settings.cores) + moved(probes)
    return figures, probes, reasons


def run(step, settings):
    times = {m.name: calibrate(m, settings) for m in step.measurements}
    places, disturbed = [], []  # rounds, by how far the cores were from each other
    kept = []
    until = time.monotonic() + settings.patience
    while len(kept) < settings.rounds:
        figures, probes, reasons = one_round(step, times, settings)
        if reasons:
            disturbed.append(f"{step.name}: " + "; ".join(reasons))
            if not settings.force:
                if len(disturbed) > settings.rounds and time.monotonic() > until:
                    raise Busy(disturbed[-1])
                settings.say(f"    a round does not count: {'; '.join(reasons)}")
                quiet.await_quiet(settings.cores, 2)
                continue
        line_ns = statistics.median(probes)
        kept = place_of(line_ns, places)
        kept.append((figures, line_ns))
    by_name = {m.name: [figures[m.name] for figures, _ in kept] for m in step.measurements}
    lines = [line_ns for _, line_ns in kept]
    return StepResult(by_name, commands(step, times, settings), lines, tuple(disturbed))


def place_of(line_ns, places):
    """The rounds that may be put together with one of which a cache line took so long."""
    for rounds in places:
        if not moved([line_ns, *(other for _, other in rounds)]):
            return rounds
    places.append([])
    return places[-1]
