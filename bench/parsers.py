# SPDX-License-Identifier: MIT
"""Reads the figures out of what programs print. What is not found is a Misread, never a zero."""

import json
import math
import re

CMTIME_STEPS = 7  # from making an id to destroying it
MIB = 1 << 20  # what perftest and ucx_perftest call MB
NUMBER = r"-?(\d+(\.\d+)?|nan|inf)"  # perftest's t_stdev of few samples is `-nan`


class Misread(Exception):
    """The program did not print what was expected of it."""


def table_row(text, heading, size=None):
    """The numbers of the only row below the heading of perftest's table."""
    lines = text.splitlines()
    headings = [i for i, line in enumerate(lines) if line.lstrip().startswith(heading)]
    rows = []
    for line in lines[headings[-1] + 1 :] if headings else []:
        words = line.split()
        if words and all(re.fullmatch(NUMBER, word) for word in words):
            rows.append([float(word) for word in words])
    if len(rows) != 1:
        raise Misread(f"{len(rows)} rows of figures below `{heading}`, not one")
    if size is not None and rows[0][0] != size:
        raise Misread(f"the figures are for {rows[0][0]:.0f} bytes, not {size}")
    return rows[0]


def positive(value, what):
    if not math.isfinite(value) or value <= 0:
        raise Misread(f"{what} is {value}")
    return value


def perftest_latency(text, size, ticks_per_us):
    """The median in nanoseconds: t_typical of `-C`, which is in ticks, because in microseconds it
    has two digits only."""
    row = table_row(text, "#bytes #iterations    t_min", size)
    if len(row) < 6:
        raise Misread(f"{len(row)} columns of latency")
    return positive(row[4], "t_typical") * 1000 / ticks_per_us


def perftest_histogram(text, size, ticks_per_us):
    """The mean of the middle half of all samples (`-C -H`), in nanoseconds. Where the counter of
    the CPU advances in large steps, the median is a multiple of them; this mean is not."""
    perftest_latency(text, size, ticks_per_us)  # the table has to be there and to be right as well
    samples = [float(match[1]) for match in re.finditer(r"^\d+, ([\d.e+]+)$", text, re.MULTILINE)]
    if len(samples) < 4:
        raise Misread(f"{len(samples)} samples in the histogram")
    return positive(middle_half(samples), "the latency") * 1000 / ticks_per_us


def middle_half(samples):
    samples = sorted(samples)
    quarter = len(samples) // 4
    middle = samples[quarter : len(samples) - quarter]
    return sum(middle) / len(middle)


def perftest_bandwidth(text, size, _ticks_per_us):
    """The average in GB/s (10^9 bytes)."""
    row = table_row(text, "#bytes     #iterations    BW peak", size)
    if len(row) != 5:
        raise Misread(f"{len(row)} columns of bandwidth")
    return positive(row[3], "BW average") * MIB / 1e9


def perftest_rate(text, size, _ticks_per_us):
    """Millions of messages a second."""
    row = table_row(text, "#bytes     #iterations    BW peak", size)
    if len(row) != 5:
        raise Misread(f"{len(row)} columns of bandwidth")
    return positive(row[4], "MsgRate")


def ucx_row(text, kind):
    """The figures of `ucx_perftest -f`: iterations; percentile, average and overall of the latency;
    average and overall of bandwidth and of rate. The heading tells whether it is a latency."""
    if f"{kind} (usec)" not in text:
        raise Misread(f"no column of `{kind} (usec)`")
    number = r"\d+(?:\.\d+)?"
    rows = re.findall(rf"^(?:Final:)?((?:\s+{number}){{8}})\s*$", text, re.MULTILINE)
    if len(rows) != 1:
        raise Misread(f"{len(rows)} rows of figures, not one")
    return [float(word) for word in rows[0].split()]


def ucx_latency(text, _size, _ticks_per_us):
    """The median in nanoseconds."""
    return positive(ucx_row(text, "latency")[1], "the median") * 1000


def ucx_bandwidth(text, size, _ticks_per_us):
    """GB/s over the whole run."""
    row = ucx_row(text, "overhead")
    bandwidth, rate = row[5] * MIB / 1e9, row[7]
    # Its own two columns have to agree about the size of a message.
    if size >= 64 and abs(rate * size / 1e9 - bandwidth) > 0.02 * bandwidth:
        raise Misread(f"{rate:.0f} messages a second of {size} bytes are not {bandwidth:.3f} GB/s")
    return positive(bandwidth, "the bandwidth")


def ucx_rate(text, _size, _ticks_per_us):
    """Millions of messages a second, over the whole run."""
    return positive(ucx_row(text, "overhead")[7], "the rate") / 1e6


def iperf3(text, _size, _ticks_per_us):
    """What the receiver got, in GB/s, of `iperf3 -J`."""
    try:
        received = json.loads(text)["end"]["sum_received"]["bits_per_second"]
    except (KeyError, TypeError, ValueError) as error:
        raise Misread("no end.sum_received.bits_per_second") from error
    return positive(received, "the rate") / 8e9


def cmtime(text, _size, _ticks_per_us):
    """Nanoseconds of a connection: all that the client does one after the other."""
    refused = re.search(r"^event: .*", text, re.MULTILINE)
    if refused:
        raise Misread(refused[0])
    steps = re.findall(rf"^(\w[\w ]*?) *:(?: +{NUMBER}){{3}} +({NUMBER})$", text, re.MULTILINE)
    if len(steps) != CMTIME_STEPS:
        raise Misread(f"{len(steps)} steps of cmtime, not {CMTIME_STEPS}")
    return 1e3 * positive(sum(float(step[-3]) for step in steps), "the time of a connection")


def limit(name):
    """Reads a named figure of bench_limits."""

    def parse(text, _size=None, _ticks_per_us=None):
        match = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        try:
            return positive(float(match[1]), name)
        except (TypeError, ValueError) as error:
            raise Misread(f"no figure `{name}`") from error

    return parse
