# SPDX-License-Identifier: MIT
"""Writes docs/benchmarks.md and its charts."""

from . import report

ABOUT = """\
# Benchmarks

*Written by `scripts/bench --draw`; every figure comes from the run described below.*

Unmodified programs are measured: Debian's perftest over Verbena and Debian's UCX, between two
processes of one machine, each on a core of its own, and as the limit what the machine itself does
(`bench/limits`). **Ratios count, absolute times do not**: they are another processor's tomorrow.
The two sides of a comparison are measured in turn, round by round, and nothing is judged while the
machine is busy with something else. A round during which the host of a virtual machine moved its
cores, seen by what a cache line takes from one to the other, does not count either.

Latencies are medians, one way for all but READ. The write latency is compared with the cache line
by the mean of the middle half of all samples on both sides, because the counter of some processors
advances in steps of 10 ns. Bandwidth is in GB/s of 10^9 bytes.
"""


def cells(*words):
    return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"


def page(results, charts):
    yield ABOUT
    yield "## The machine\n"
    yield cells("", "")
    yield "|---|---|"
    yield from (cells(name, text) for name, text in results["machine"])
    yield "\n## Goals\n"
    if results["disturbed"]:
        yield "**Not judged: the machine was busy with something else.**\n"
    yield cells("goal", "formula", "measured", "least..most", "bound", "")
    yield "|---|---|---|---|---|---|"
    for name, formula, measured, between, bound, verdict, note in report.goal_rows(results):
        told = f"{verdict} ({note})" if note else verdict
        yield cells(name, f"`{formula}`", measured, between, bound, told)
    for file, title in charts:
        yield f"\n## {title}\n"
        yield f"![{title}](benchmarks/{file})"
    yield "\n## All figures and commands\n"
    yield "Medians over the rounds, least and most. How often something is done (`-n`) is such that"
    yield "it lasts a quarter of a second, or 500,000 exchanges. The server of perftest has the"
    yield "client's command without the last word and runs on the other core, that of UCX is"
    yield "`ucx_perftest -p PORT` with the same environment.\n"
    yield "```text"
    for name, step in results["steps"].items():
        yield from report.step_text(name, step)
    yield "```"


def write(results, docs, *, force=False):
    """Draws and writes the page into the folder. What is not judged replaces nothing, unless that
    is forced: then no file is written."""
    if results["disturbed"] and not force:
        return []
    from . import charts  # needs matplotlib, which only those who draw have to have

    drawn = charts.draw_all(results, docs / "benchmarks")
    text = "\n".join(page(results, drawn)) + "\n"
    (docs / "benchmarks.md").write_text(text, encoding="utf-8")
    return [docs / "benchmarks.md"] + [docs / "benchmarks" / file for file, _ in drawn]
