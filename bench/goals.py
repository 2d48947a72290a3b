# SPDX-License-Identifier: MIT
"""What is to be reached. The formula is what is printed and what is computed; its names are those
of the step's measurements (measurements.py).

A formula over a step is computed for each round, of figures that were measured side by side, and
its median counts. So it is with a formula over sizes (steps `bw-by-size-*`), for each step to a
size whose two buffers fit, with room for something else, the largest cache that a core has for
itself; the worst one counts. The note to it has every fall that is too deep, and what memcpy does
there: where it falls at least as deep, the machine does, and not Verbena: that fall does not count.
"""

import ast
import statistics
from typing import NamedTuple

from .measurements import SIZES

AT_MOST, AT_LEAST = "<=", ">="
SWEEP = "bw-by-size-"


class Goal(NamedTuple):
    name: str
    step: str
    formula: str
    relation: str
    bound: float
    unit: str = ""


GOALS = (
    Goal("write latency 2 B", "write-lat", "write_lat_2 / line", AT_MOST, 1.25),
    Goal("send latency 2 B", "send-lat-2", "send_lat_2 / tag_lat_2", AT_MOST, 0.85),
    Goal("send latency 64 B", "send-lat-64", "send_lat_64 / tag_lat_64", AT_MOST, 0.85),
    Goal("send latency 4 KiB", "send-lat-4096", "send_lat_4096 / tag_lat_4096", AT_MOST, 0.6),
    Goal("write bandwidth 64 KiB", "one-sided-bw", "write_bw_65536 / put_bw_65536", AT_LEAST, 0.95),
    Goal("read bandwidth 64 KiB", "one-sided-bw", "read_bw_65536 / put_bw_65536", AT_LEAST, 0.95),
    Goal(
        "send bandwidth 64 KiB",
        "send-bw",
        "send_bw_65536 / max(tag_bw_65536, tag_bw_posix_65536)",
        AT_LEAST,
        2.0,
    ),
    Goal(
        "8-byte writes",
        "write-rate",
        "max(write_rate, write_rate_l16, write_rate_l64)",
        AT_LEAST,
        40.0,
        "M/s",
    ),
    Goal(
        "8-byte sends",
        "send-rate",
        "max(send_rate, send_rate_l16, send_rate_l64)",
        AT_LEAST,
        30.0,
        "M/s",
    ),
    Goal("no cliff, write", SWEEP + "*", "fall(write_bw)", AT_MOST, 0.1),
    Goal("no cliff, read", SWEEP + "*", "fall(read_bw)", AT_MOST, 0.1),
    Goal("no cliff, send", SWEEP + "*", "fall(send_bw)", AT_MOST, 0.1),
    Goal("wire send latency 2 B", "wire-lat", "wire_send_lat_2 / udp", AT_MOST, 1.3),
    Goal("wire bandwidth, MTU 4096", "wire-bw-4096", "wire_write_bw_4096 / tcp", AT_LEAST, 2.0),
    Goal("wire bandwidth, MTU 1024", "wire-bw-1024", "wire_write_bw_1024 / tcp", AT_LEAST, 1.2),
    Goal("10,000 connections a second", "connections", "cmtime", AT_MOST, 100_000.0, "ns"),
    Goal("write latency, no adoption", "no-adoption", "write_lat_never", AT_MOST, 1500.0, "ns"),
)


class Outcome(NamedTuple):
    goal: Goal
    value: float = None  # None: not measured, the note says why
    low: float = None
    high: float = None
    note: str = ""

    @property
    def reached(self):
        if self.value is None:
            return False
        if self.goal.relation == AT_MOST:
            return self.value <= self.goal.bound
        return self.value >= self.goal.bound


def names(formula):
    """The measurements (or, in fall(), the series) that a formula is about."""
    functions = {n.func.id for n in ast.walk(ast.parse(formula)) if isinstance(n, ast.Call)}
    found = [n.id for n in ast.walk(ast.parse(formula)) if isinstance(n, ast.Name)]
    return [name for name in found if name not in functions]


def compute(formula, figures):
    """The formulas are the constants above: nothing from outside is evaluated."""
    scope = {"__builtins__": {}, "max": max}
    return eval(compile(formula, "goal", "eval"), scope, dict(figures))


def falls(results, name, sizes):
    """For each size but the first: the parts of the bandwidth that are lost on the way to it from
    the one before, by round. They are negative where bandwidth is gained."""
    for small, large in zip(sizes, sizes[1:]):
        figures = results[f"{SWEEP}{large}"]
        pairs = zip(figures[f"{name}_{small}"], figures[f"{name}_{large}"])
        yield small, large, [1 - after / before for before, after in pairs]


def judge(results, failures, cache):
    """An Outcome for each goal whose step ran. `results` has, by step and measurement, the figures
    of the rounds; `failures`, by step, what went wrong."""
    for goal in GOALS:
        if goal.step.endswith("*"):
            outcome = judge_sweep(goal, results, failures, cache)
        else:
            outcome = judge_step(goal, results, failures)
        if outcome is not None:
            yield outcome


def judge_step(goal, results, failures):
    if goal.step in failures:
        return Outcome(goal, note=f"{goal.step} failed, see above")
    if goal.step not in results:
        return None
    figures = results[goal.step]
    rounds = len(next(iter(figures.values())))
    by_round = [
        compute(goal.formula, {name: figures[name][i] for name in names(goal.formula)})
        for i in range(rounds)
    ]
    return Outcome(goal, statistics.median(by_round), min(by_round), max(by_round))


def judge_sweep(goal, results, failures, cache):
    sizes = sorted(int(step[len(SWEEP) :]) for step in results if step.startswith(SWEEP))
    failed = [step for step in failures if step.startswith(SWEEP)]
    if failed:
        return Outcome(goal, note=f"{', '.join(failed)} failed, see above")
    if not sizes:
        return None
    if not cache:
        return Outcome(goal, note="the system does not tell the sizes of the caches")
    inside = [size for size in SIZES if 2 * size < cache]
    if not set(inside) <= set(sizes):
        return None  # only some of the sizes were wanted
    (name,) = names(goal.formula)
    copied = {
        large: statistics.median(rounds) for _, large, rounds in falls(results, "memcpy", inside)
    }
    deep, worst = [], [0.0]
    for small, large, rounds in falls(results, name, inside):
        fall = statistics.median(rounds)
        if fall > goal.bound:
            deep.append(
                f"{small:,} to {large:,} bytes {0 - fall:+.0%} (memcpy {0 - copied[large]:+.0%})"
            )
        if fall > copied[large] and fall > statistics.median(worst):
            worst = rounds
    note = "; ".join([f"sizes up to {inside[-1]:,}", *deep])
    return Outcome(goal, statistics.median(worst), min(worst), max(worst), note)
