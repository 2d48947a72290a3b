# SPDX-License-Identifier: MIT
"""The results: as JSON, which can be read again, and as text."""

import json
import statistics

from . import goals
from .measurements import steps

NOT_JUDGED = "not judged"
KEPT = ("machine", "cache", "disturbed", "steps", "failures")  # the goals are judged anew


class Unreadable(Exception):
    """A file of results cannot be used; says why."""


def step_json(step, result):
    return {
        "title": step.title,
        "only_drawn": step.only_drawn,
        "line_ns": result.line_ns,
        "measurements": {
            m.name: {
                "title": m.title,
                "unit": m.unit,
                "figures": result.figures[m.name],
                "command": result.commands[m.name],
            }
            for m in step.measurements
        },
    }


def outcome_json(outcome):
    return {
        **outcome.goal._asdict(),
        "value": outcome.value,
        "low": outcome.low,
        "high": outcome.high,
        "reached": outcome.reached,
        "note": outcome.note,
    }


def figures(results):
    """What goals.judge takes."""
    return {
        name: {m: held["figures"] for m, held in step["measurements"].items()}
        for name, step in results["steps"].items()
    }


def outcomes(results):
    return list(goals.judge(figures(results), results["failures"], results["cache"]))


def save(results, path):
    held = {**results, "goals": [outcome_json(outcome) for outcome in outcomes(results)]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(held, file, indent=1)
        file.write("\n")


def load(paths):
    """The results of several runs as if they were one: each of its steps was measured in one run,
    and that is what is compared. They have to be of one machine and one version."""
    merged = None
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                results = json.load(file)
            results = {name: results[name] for name in KEPT}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unreadable(f"{path}: {error!r}") from error
        if merged is None:
            merged = results
            continue
        if facts(results) != facts(merged):
            raise Unreadable(f"{path} and {paths[0]} are not of one machine and one version")
        for name in ("steps", "failures"):
            if twice := sorted(set(merged[name]) & set(results[name])):
                raise Unreadable(f"{path} has what an earlier file has: {', '.join(twice)}")
            merged[name].update(results[name])
        merged["disturbed"] += results["disturbed"]
    order = {step.name: at for at, step in enumerate(steps())}
    by_order = sorted(merged["steps"].items(), key=lambda item: order.get(item[0], len(order)))
    return {**merged, "steps": dict(by_order)}


def facts(results):
    """The description without what may differ from run to run of one build."""
    return [list(fact) for fact in results["machine"] if fact[0] not in ("time stamps", "source")]


def digits(value):
    """Three digits that mean something, without exponents."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def spread(values, unit):
    middle = statistics.median(values)
    return f"{digits(middle)} {unit}", f"{digits(min(values))}..{digits(max(values))}"


def verdict(outcome, judged):
    if outcome.value is None:
        return "MISSED"
    if not judged:
        return NOT_JUDGED
    return "reached" if outcome.reached else "MISSED"


def bound_text(goal):
    return f"{goal.relation} {goal.bound:g} {goal.unit}".rstrip()


def goal_rows(results):
    judged = not results["disturbed"]
    for outcome in outcomes(results):
        if outcome.value is None:
            measured, between = "not measured", ""
        else:
            measured = f"{digits(outcome.value)} {outcome.goal.unit}".rstrip()
            between = f"{digits(outcome.low)}..{digits(outcome.high)}"
        yield (
            outcome.goal.name,
            outcome.goal.formula,
            measured,
            between,
            bound_text(outcome.goal),
            verdict(outcome, judged),
            outcome.note,
        )


def table(heading, rows):
    """Columns as wide as they have to be; what stands behind the last of the heading is a note."""
    rows = [tuple(heading)] + [tuple(row) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heading))]
    for row in rows:
        line = "  ".join(f"{word:<{width}}" for word, width in zip(row, widths))
        yield f"  {line}".rstrip()
        for note in filter(None, row[len(heading) :]):
            yield f"      {note}"


def step_text(name, step):
    yield f"{step['title']}  [{name}]"
    rows = []
    for held in step["measurements"].values():
        middle, between = spread(held["figures"], held["unit"])
        rows.append((held["title"], middle, between, "$ " + held["command"]))
    width = max(len(row[0]) for row in rows)
    for title, middle, between, command in rows:
        yield f"  {title:<{width}}  {middle:>12}  {between}"
        yield f"      {command}"
    if step.get("line_ns"):
        middle, between = spread(step["line_ns"], "ns")
        yield f"  meanwhile a cache line from core to core took {middle}, {between}"


def machine_text(results):
    for name, text in results["machine"]:
        yield f"  {name:<16}  {text}"


def goals_text(results):
    rows = list(goal_rows(results))
    if not rows:
        yield "No goal is judged by what was measured."
        return
    yield "Goals: medians over the rounds, and least..most"
    heading = ("goal", "formula", "measured", "from..to", "bound", "")
    yield from table(heading, rows)
    if results["disturbed"]:
        yield ""
        yield "NOT JUDGED: the machine was busy with something else while this was measured:"
        yield from (f"  {reason}" for reason in results["disturbed"])


def status(results):
    """The exit status: 0 all reached, 1 missed or failed, 3 not judged."""
    if results["disturbed"]:
        return 3
    missed = [outcome for outcome in outcomes(results) if not outcome.reached]
    return 1 if missed or results["failures"] else 0
