#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Debian's ibverbs-utils and perftest, unmodified, between two processes of this host.

Iteration counts are small: this shows that things work, not how fast. VERBENA_TEST_MODE=long has
more of them.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import library  # noqa: E402

# For one run. Two programs that spin, on two cores that somebody else wants too, need it.
SECONDS = 300
LONG = os.environ.get("VERBENA_TEST_MODE") == "long"
FACTOR = 10 if LONG else 1
MAX_SIZE = 8388608


def pingpongs():
    for kind in ("rc", "uc", "ud", "srq"):
        for extra in ([], ["-e"]):
            yield f"ibv_{kind}_pingpong", [*extra, "-c"], 200
        yield f"ibv_{kind}_pingpong", ["-s", "1"], 200
    for kind in ("rc", "uc", "srq"):
        yield f"ibv_{kind}_pingpong", ["-s", "1048576", "-m", "4096", "-c"], 50
    yield "ibv_rc_pingpong", ["-N", "-c"], 200
    yield "ibv_rc_pingpong", ["-N", "-e", "-c"], 200
    yield "ibv_srq_pingpong", ["-q", "64", "-c"], 20
    yield "ibv_xsrq_pingpong", [], 200
    yield "ibv_xsrq_pingpong", ["-e"], 200
    yield "ibv_xsrq_pingpong", ["-s", "262144"], 20


def bandwidths():
    for verb in ("write", "read", "send"):
        program = f"ib_{verb}_bw"
        yield program, ["-a"], 40
        yield program, ["-a", "-b"], 20
        for extra in (
            ["-q", "16"],
            ["-q", "16", "-b"],
            ["-l", "8"],
            ["-Q", "1", "-t", "16"],
            ["-s", "4097", "-m", "256"],
        ):
            yield program, extra, 200
        yield program, ["-D", "1"], None
        if verb != "write":  # its receiver has no completions to sleep for
            yield program, ["-e"], 200
            # Receivers of perftest poll once an event, for as many completions as one queue pair
            # has receives. Where those of four have come meanwhile, it waits for ever.
            pairs = "1" if verb == "send" else "4"
            yield program, ["-e", "-q", pairs, "-b"], 200
        if verb != "read":
            yield program, ["-c", "UC", "-a"], 40
            yield program, ["-c", "UC", "-q", "4", "-b"], 200
            yield program, ["-I", "128", "-s", "64"], 200
    for verb in ("write", "read", "send"):
        yield f"ib_{verb}_bw", ["-c", "XRC", "-a"], 20
    yield "ib_send_bw", ["-c", "XRC", "-q", "4", "-b"], 200
    yield "ib_send_bw", ["-c", "UD", "-a"], 40
    yield "ib_send_bw", ["-c", "UD", "-q", "4", "-s", "1024"], 200
    yield "ib_send_bw", ["-c", "UD", "-e", "-s", "1024"], 200
    yield "ib_send_bw", ["-r", "16", "-t", "128"], 200
    yield "ib_send_bw", ["--use-srq", "-q", "4"], 200


def latencies():
    for verb in ("write", "read", "send"):
        yield f"ib_{verb}_lat", ["-a"], 20
        if verb != "write":
            yield f"ib_{verb}_lat", ["-e"], 200
        if verb != "read":
            yield f"ib_{verb}_lat", ["-c", "UC", "-a"], 20
    yield "ib_send_lat", ["-c", "UD", "-a"], 20
    yield "ib_send_lat", ["-c", "UD", "-e"], 200


def atomics():
    for operation in ("CMP_AND_SWAP", "FETCH_AND_ADD"):
        yield "ib_atomic_lat", ["-A", operation], 200
        for extra in ([], ["-b"], ["-q", "16"], ["-e"], ["-l", "8"], ["-o", "1"]):
            yield "ib_atomic_bw", ["-A", operation, *extra], 200


def rows(output):
    """Size and numbers of each line of a perftest table. (Some may be infinite or "-nan".)"""
    table = []
    for line in output.splitlines():
        words = line.split()
        if len(words) >= 4 and all(re.fullmatch(r"[0-9.]+|-?nan|inf", word) for word in words):
            table.append((int(words[0]), [float(word) for word in words[1:]]))
    return table


def expected_sizes(output, options):
    if "-a" not in options:
        return None
    mtu = re.search(r"Mtu\s*:\s*(\d+)", output)
    if not mtu:
        raise library.Failure("no MTU\n" + output)
    last = int(mtu.group(1)) if "UD" in options else MAX_SIZE
    sizes, size = [], 2
    while size <= last:
        sizes.append(size)
        size *= 2
    return sizes


def check_perftest(output, options):
    table = rows(output)
    if not table:
        raise library.Failure("no result\n" + output)
    sizes = expected_sizes(output, options)
    if sizes and [size for size, _ in table] != sizes:
        raise library.Failure(f"not all sizes from 2 to {sizes[-1]}\n{output}")
    slow = any(numbers[-1] <= 0 for _, numbers in table if numbers)
    if slow and not library.knows_no_time(output):
        raise library.Failure("a result of 0\n" + output)


def check_pingpong(output, iterations):
    wanted = rf"{iterations} iters in|^success$"  # the second: what ibv_xsrq_pingpong says
    if "invalid data" in output or not re.search(wanted, output, re.MULTILINE):
        raise library.Failure("no or wrong result\n" + output)


def run_pingpong(program, options, iterations, variables):
    command = [program, "-p", "{port}", "-g", "0", "-n", str(iterations), *options]
    total = iterations
    for output in library.run_pair(command, variables, SECONDS):
        check_pingpong(output, total)


def run_perftest(program, options, iterations, variables):
    # -F: no word about the processor's frequency.
    command = [program, "-p", "{port}", "-F", *options]
    if iterations:
        command += ["-n", str(iterations)]
    client, _ = library.run_pair(command, variables, SECONDS)
    check_perftest(client, options)


# The server is there when it prints the head of its table.
RAW_LATENCY = """
stdbuf -oL raw_ethernet_lat {options} --server -B {there} -E {here} >"$1" 2>&1 &
server=$!
until grep -q '#bytes' "$1"; do
    kill -0 $server || exit 1
    sleep 0.05
done
sleep 1
raw_ethernet_lat {options} --client -B {here} -E {there} || exit 1
wait $server
"""


def run_raw_latency(size, variables):
    """Ethernet frames between two processes that have a network to themselves."""
    script = RAW_LATENCY.format(
        options=f"-F -d vrb_lo -n 1000 -s {size}",
        here="02:00:00:00:00:01",
        there="02:00:00:00:00:02",
    )
    with tempfile.NamedTemporaryFile() as printed:
        done = subprocess.run(
            [*library.in_own_network(), "sh", "-c", script, "sh", printed.name],
            env=variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        server = pathlib.Path(printed.name).read_text(encoding="utf-8", errors="replace")
    for output in (done.stdout, server):
        if done.returncode or not re.search(rf"^\s*{size}\s+1000\s", output, re.MULTILINE):
            raise library.Failure(f"{done.stdout}{done.stderr}\n-- server:\n{server}")


def run_devinfo(variables, names):
    output = subprocess.run(
        ["ibv_devinfo", "-v"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    ).stdout
    found = re.findall(r"^hca_id:\s*(\S+)", output, re.MULTILINE)
    if found != names:
        raise library.Failure(f"ibv_devices has {names}, ibv_devinfo {found}")
    for wanted in ("PORT_ACTIVE", "Ethernet", "RoCE v2", "max_qp:", "ATOMIC_"):
        if wanted not in output:
            raise library.Failure(f"{wanted} is missing in\n{output}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--library",
        default=os.environ.get("VERBENA_LIBRARY"),
        help="the folder that has libibverbs.so.1 (or set VERBENA_LIBRARY)",
    )
    library.add_mode(parser)
    library.add_sample(parser)
    parser.add_argument("--only", metavar="REGEX", help="run only the cases whose name matches")
    options = parser.parse_args()
    if not options.library:
        parser.error("--library or VERBENA_LIBRARY is needed")
    report = library.Report(options.only, options.sample)
    for mode in library.modes(options.mode):
        run_all(report, library.environment(options.library, mode))
    return report.close()


def run_all(report, variables):
    names = library.devices(variables)
    if not names:
        sys.exit("ibv_devices prints no device")
    report.case("ibv_devinfo -v", lambda: run_devinfo(variables, names))
    for size in (64, 1500):
        name = f"raw_ethernet_lat -s {size}"
        if library.in_own_network():
            report.case(name, lambda size=size: run_raw_latency(size, variables))
        else:
            report.skip(name, "no network namespaces")

    for runner, cases in (
        (run_pingpong, pingpongs),
        (run_perftest, bandwidths),
        (run_perftest, latencies),
        (run_perftest, atomics),
    ):
        for program, words, iterations in cases():
            name = " ".join([program, *words])
            if not shutil.which(program):
                report.case(name, lambda: fail("not installed: run scripts/setup test"))
                continue
            count = iterations * FACTOR if iterations else None
            report.case(name, lambda: runner(program, words, count, variables))


def fail(why):
    raise library.Failure(why)


if __name__ == "__main__":
    sys.exit(main())
