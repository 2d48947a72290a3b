# SPDX-License-Identifier: MIT
"""Measures Verbena against others on this machine, and judges it by the goals of the project.

Unmodified programs (Debian's perftest over Verbena, Debian's UCX) and what the machine itself
allows, two processes on two cores. Exit status: 0 all goals reached, 1 a goal missed or a program
failed, 2 wrong usage, 3 not judged, because the machine is busy with something else.
"""

import argparse
import fnmatch
import pathlib
import signal
import subprocess
import sys

from . import machine, measurements, page, process, quiet, report, rounds
from .measurements import CLIENT_CORE, LIMITS, SERVER_CORE, VERBENA
from .parsers import limit

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = ("verbena", "verbena_preload_so", "ibverbs_so", "bench_programs")
BUSY = 3


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--list", action="store_true", help="list the steps and the goals, and measure nothing")
    add("--only", metavar="NAME", action="append", help="only the steps of this name (* and ?)")
    add("--rounds", metavar="N", type=int, default=7, help="rounds of each step (7)")
    add("--quick", action="store_true", help="three rounds")
    add("--cores", metavar="A,B", help="the server's core and the client's")
    add("--force", action="store_true", help="measure on a busy machine, but judge nothing then")
    add("--wait", metavar="S", type=float, default=30, help="seconds to wait for quiet (30)")
    add("--json", metavar="FILE", type=pathlib.Path, help="write everything that was measured")
    add("--from", metavar="FILE", nargs="+", dest="files", help="take these results, measure none")
    add("--draw", action="store_true", help="measure more; write docs/benchmarks.md and charts")
    add("--docs", metavar="DIR", type=pathlib.Path, default=ROOT / "docs", help="for --draw")
    add("--build", metavar="DIR", type=pathlib.Path, help="use this build of Verbena as it is")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 3
    if options.rounds < 1:
        parser.error("--rounds takes 1 or more")
    chosen = chosen_steps(options)
    if not chosen:
        parser.error(f"no step is named {' or '.join(options.only)}: see --list")
    return options, chosen


def chosen_steps(options):
    wanted = options.only or []
    return [
        step
        for step in measurements.steps()
        if any(fnmatch.fnmatchcase(step.name, pattern) for pattern in wanted)
        or (not wanted and (options.draw or not step.only_drawn))
    ]


def list_all(steps):
    from . import goals

    for step in steps:
        names = ", ".join(m.name for m in step.measurements)
        print(f"{step.name:<24}  {step.title}: {names}")
    print()
    rows = [(goal.name, goal.step, goal.formula, report.bound_text(goal)) for goal in goals.GOALS]
    print("\n".join(report.table(("goal", "step", "formula", "bound"), rows)))


def prepare(options):
    """Installs and builds what is needed, and says where the build is."""
    setup = [ROOT / "scripts/setup", "bench"]
    build = [ROOT / "scripts/build", "release", *TARGETS]
    for command in [setup] if options.files or options.build else [setup, build]:
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
            raise process.Failed(f"{command[0]} failed, see above")
    options.build = (options.build or ROOT / "build/release").resolve()


def settings_for(options):
    cores = machine.choose_cores(options.cores)
    words = {
        VERBENA: str(options.build / "bin/verbena"),
        LIMITS: str(options.build / "bin/bench/bench_limits"),
        SERVER_CORE: str(cores[0]),
        CLIENT_CORE: str(cores[1]),
    }
    for program in (words[VERBENA], words[LIMITS]):
        if not pathlib.Path(program).is_file():
            raise process.Failed(f"there is no {program}: without --build it would be made")
    ticks = limit("ticks_per_us")(process.run(None, [words[LIMITS], "ticks"], {}, 0, 10))
    return rounds.Settings(
        rounds=options.rounds,
        cores=cores,
        words=words,
        ticks_per_us=ticks,
        force=options.force,
        patience=options.wait,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )


def measure(options, chosen):
    """Runs the steps. Returns what report.save writes; raises rounds.Busy where it cannot begin."""
    settings = settings_for(options)
    results = {
        "machine": machine.describe(
            ROOT, options.build, settings.cores, settings.ticks_per_us
        ),
        "cache": machine.private_cache(settings.cores[1]),
        "disturbed": [],
        "steps": {},
        "failures": {},
    }
    print("\n".join(report.machine_text(results)) + "\n", flush=True)
    reasons = quiet.await_quiet(settings.cores, 0 if options.force else options.wait)
    if reasons and not options.force:
        raise rounds.Busy("; ".join(reasons))
    results["disturbed"] += [f"at the start: {reason}" for reason in reasons]
    for step in chosen:
        try:
            result = rounds.run(step, settings)
        except process.Failed as error:
            results["failures"][step.name] = str(error)
            print(f"{step.title}  [{step.name}]\n  FAILED: {error}\n", flush=True)
            continue
        except rounds.Busy as error:
            results["disturbed"].append(str(error))
            break
        if options.force:
            results["disturbed"] += result.disturbed
        results["steps"][step.name] = report.step_json(step, result)
        text = report.step_text(step.name, results["steps"][step.name])
        print("\n".join(text) + "\n", flush=True)
    return results


def stop(number, _frame):
    sys.exit(128 + number)  # through every `finally`, so that no program is left behind


def main():
    options, chosen = arguments()
    if options.list:
        list_all(chosen)
        return 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        prepare(options)
        results = report.load(options.files) if options.files else measure(options, chosen)
    except report.Unreadable as error:
        print(f"scripts/bench: {error}", file=sys.stderr)
        return 2
    except (machine.Unfit, rounds.Busy) as error:
        print(f"scripts/bench: nothing is judged: {error}", file=sys.stderr)
        if isinstance(error, rounds.Busy):
            with open("/proc/loadavg", encoding="ascii") as file:
                print(f"  load average {' '.join(file.read().split()[:3])}", file=sys.stderr)
            print("  --force measures all the same, and judges nothing", file=sys.stderr)
        return BUSY
    except process.Failed as error:
        print(f"scripts/bench: {error}", file=sys.stderr)
        return 1
    print("\n".join(report.goals_text(results)))
    if options.json:
        report.save(results, options.json)
    if options.draw:
        written = page.write(results, options.docs, force=options.force)
        print("written: " + (", ".join(map(str, written)) or "nothing, as nothing is judged"))
    return report.status(results)


if __name__ == "__main__":
    sys.exit(main())
