# SPDX-License-Identifier: MIT
"""Draws figures by size as SVG. The background is opaque, so that the charts can be read on light
pages and on dark ones."""

import statistics

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot, ticker  # noqa: E402

from .measurements import bytes_text  # noqa: E402

# Colours that people who see few colours can tell apart; Verbena's lines are full, others' dashed.
SERIES = {
    "write_lat": ("ib_write_lat, Verbena", "#0b5fa5", "-", "o"),
    "send_lat": ("ib_send_lat, Verbena", "#c2410c", "-", "s"),
    "read_lat": ("ib_read_lat (there and back), Verbena", "#15803d", "-", "^"),
    "put_lat": ("put, UCX", "#5b9bd5", "--", "o"),
    "tag_lat": ("tag, UCX", "#e59866", "--", "s"),
    "write_bw": ("ib_write_bw, Verbena", "#0b5fa5", "-", "o"),
    "read_bw": ("ib_read_bw, Verbena", "#15803d", "-", "^"),
    "send_bw": ("ib_send_bw, Verbena", "#c2410c", "-", "s"),
    "put_bw": ("put, UCX", "#5b9bd5", "--", "o"),
    "tag_bw": ("tag, UCX", "#e59866", "--", "s"),
    "tag_bw_posix": ("tag, UCX, posix only", "#a16207", ":", "D"),
    "memcpy": ("memcpy, one core", "#71717a", "-.", ""),
}
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "verbena",  # the same figures make the same file
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.edgecolor": "#52525b",
    "axes.labelcolor": "#18181b",
    "text.color": "#18181b",
    "xtick.color": "#3f3f46",
    "ytick.color": "#3f3f46",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def by_size(results, series, prefixes):
    """(size, median, least, most) of a series, in the steps with these names."""
    points = []
    for name, step in results["steps"].items():
        prefix, _, size = name.rpartition("-")
        held = step["measurements"].get(f"{series}_{size}")
        if prefix in prefixes and held:
            values = held["figures"]
            points.append((int(size), statistics.median(values), min(values), max(values)))
    return sorted(points)


def draw(path, title, unit, all_points, levels=()):
    """One chart of several series over the size; `levels` are horizontal lines."""
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(9, 5.4), facecolor="#fcfcfd")
        axes.set_facecolor("#fcfcfd")
        for series, points in all_points.items():
            label, colour, dashes, marker = SERIES[series]
            sizes, middle, least, most = zip(*points)
            axes.plot(
                sizes, middle, dashes, color=colour, marker=marker, markersize=4.5, label=label
            )
            axes.fill_between(sizes, least, most, color=colour, alpha=0.13, linewidth=0)
        for value, label in levels:
            axes.axhline(value, color="#71717a", linestyle=":", label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(ticker.FixedLocator([2 * 4**power for power in range(11)]))
        axes.xaxis.set_major_formatter(lambda size, _: bytes_text(int(size)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
        axes.tick_params(axis="x", labelrotation=30)
        axes.grid(True, which="major", color="#d4d4d8", linewidth=0.7)
        axes.grid(True, which="minor", axis="y", color="#ececef", linewidth=0.5)
        axes.set_xlabel("size of a message")
        axes.set_ylabel(unit)
        axes.set_title(title, loc="left", fontsize=13)
        axes.legend(frameon=False, fontsize=9.5, loc="best")
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


def points(results, names, prefixes):
    found = {name: by_size(results, name, prefixes) for name in names}
    return {name: held for name, held in found.items() if held}


def draw_all(results, folder):
    """Draws what there are figures for; returns (file name, title) pairs."""
    drawn = []
    bandwidths = points(
        results,
        ("write_bw", "read_bw", "send_bw", "put_bw", "tag_bw", "tag_bw_posix", "memcpy"),
        ("bw-by-size", "ucx-bw-by-size"),
    )
    latencies = points(
        results,
        ("write_lat", "send_lat", "read_lat", "put_lat", "tag_lat"),
        ("lat-by-size",),
    )
    levels = []
    lines = [step["measurements"].get("line") for step in results["steps"].values()]
    for limit in list(filter(None, lines))[:1]:
        levels.append((statistics.median(limit["figures"]), "a cache line from core to core"))
    folder.mkdir(parents=True, exist_ok=True)
    if latencies:
        title = "Latency by size, two processes of one machine"
        draw(folder / "latency.svg", title, "ns, one way (median)", latencies, levels)
        drawn.append(("latency.svg", title))
    if bandwidths:
        title = "Bandwidth by size, two processes of one machine"
        draw(folder / "bandwidth.svg", title, "GB/s", bandwidths)
        drawn.append(("bandwidth.svg", title))
    return drawn
