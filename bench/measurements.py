# SPDX-License-Identifier: MIT
"""What is measured: the list of steps. A step's measurements are taken in turn, round by round, so
that what is compared was measured side by side; a measurement is a pair of commands, server and
client, and the parser of what the client prints.
"""

import dataclasses
import pathlib
from typing import Callable, NamedTuple, Optional

from . import parsers

# Names that stand in the commands for what is known only when they run.
VERBENA, LIMITS, PORT, TIMES = "{verbena}", "{limits}", "{port}", "{times}"
SERVER_CORE, CLIENT_CORE = "{server_core}", "{client_core}"

SIZES = tuple(2**power for power in range(1, 23))  # 2 B to 4 MiB
LATENCY_SIZES = tuple(2 * 4**power for power in range(11)) + (SIZES[-1],)

CMTIME_PAIR = str(pathlib.Path(__file__).resolve().parent / "cmtime_pair")
SECONDS = 0.25  # that one run shall measure for
SAMPLES = 500_000  # at most, of a latency


@dataclasses.dataclass(frozen=True)
class Measurement:
    name: str  # what formulas and results call it
    title: str
    unit: str  # ns, GB/s, M/s
    parse: Callable[[str, int, float], float]  # text, size, ticks a microsecond
    client: tuple
    server: Optional[tuple] = None
    size: int = 0
    environment: tuple = ()  # (name, value) pairs
    least: int = 1000  # how often it is done at least, and at most
    most: int = 20_000_000
    multiple: int = 1  # of what the number of times has to be
    ways: int = 2  # how often a latency is taken in one exchange: there and back

    def times_for(self, value):
        """How often it has to be done to last SECONDS, given its figure; two digits, so that
        commands are readable."""
        each = {
            "ns": lambda: value * 1e-9 * self.ways,
            "GB/s": lambda: self.size / (value * 1e9),
            "M/s": lambda: 1 / (value * 1e6),
        }[self.unit]()
        times = min(max(two_digits(SECONDS / each), self.least), self.most)
        return times // self.multiple * self.multiple


def two_digits(number):
    return int(float(f"{number:.1e}"))


class Step(NamedTuple):
    name: str
    title: str
    measurements: tuple
    only_drawn: bool = False  # nothing is judged by it


def pinned(core, *command):
    return ("taskset", "-c", core, *command)


def bytes_text(size):
    for power, unit in ((20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size >> power} {unit}"
    return f"{size} B"


def perftest(program, size, *options, name=None, parse, unit, **fields):
    """An unmodified program of Debian's perftest over Verbena, both ends alike."""
    command = (VERBENA, "run", "--", program, "-F", "-p", PORT, "-s", size, "-n", TIMES, *options)
    kind = program.removeprefix("ib_")
    return Measurement(
        name=name or f"{kind}_{size}",
        title=" ".join([program, bytes_text(size), *fields.pop("remark", ())]),
        unit=unit,
        parse=parse,
        server=pinned(SERVER_CORE, *command),
        client=pinned(CLIENT_CORE, *command, "localhost"),
        size=size,
        **fields,
    )


def latency(program, size, *options, histogram=False, **fields):
    return perftest(
        program,
        size,
        *(("-C", "-H") if histogram else ("-C",)),
        *options,
        parse=parsers.perftest_histogram if histogram else parsers.perftest_latency,
        unit="ns",
        most=SAMPLES,
        ways=1 if "read" in program else 2,
        **fields,
    )


def bandwidth(program, size, **fields):
    # -N: no time stamps for each message, which cost as much as a small message.
    return perftest(
        program, size, "-N", parse=parsers.perftest_bandwidth, unit="GB/s", least=200, **fields
    )


def rate(program, *options, name, remark):
    return perftest(
        program,
        8,
        "-N",
        *options,
        name=name,
        parse=parsers.perftest_rate,
        unit="M/s",
        remark=(remark,),
        least=6400,
        multiple=64,  # perftest posts whole lists only
    )


def ucx(test, size, parse, unit, *, name=None, transports=None, **fields):
    """Debian's UCX between two processes; its own choice of transports unless told."""
    return Measurement(
        name=name or f"{test.removeprefix('ucp_')}_{size}",
        title=f"UCX {test} {bytes_text(size)}" + (f" {transports}" if transports else ""),
        unit=unit,
        parse=parse,
        server=pinned(SERVER_CORE, "ucx_perftest", "-p", PORT),
        client=pinned(
            CLIENT_CORE,
            *("ucx_perftest", "-p", PORT, "-f", "-t", test),
            *("-s", size, "-n", TIMES, "-w", 200, "localhost"),
        ),
        size=size,
        environment=(("UCX_TLS", transports),) if transports else (),
        **fields,
    )


def ucx_latency(test, size):
    return ucx(test, size, parsers.ucx_latency, "ns", most=2 * SAMPLES)


def ucx_bandwidth(test, size, **fields):
    return ucx(test, size, parsers.ucx_bandwidth, "GB/s", least=200, **fields)


def tag_posix(size):
    """UCX's tags without the kernel's copy between processes (cma), which it prefers."""
    return ucx_bandwidth(
        "tag_bw", size, name=f"tag_bw_posix_{size}", transports="posix,self"
    )


def line(kind, name, title):
    return Measurement(
        name=name,
        title=title,
        unit="ns",
        parse=parsers.limit("one_way_ns_middle"),
        client=(LIMITS, kind, CLIENT_CORE, SERVER_CORE, TIMES),
        most=SAMPLES,
    )


# The limit of ib_write_lat, each end of which writes into memory of the other: so one cache line
# for each direction.
LINE = line("two-lines", "line", "cache line, one for each way")
ONE_LINE = line("line", "one_line", "cache line, the same both ways")


def memcpy(size):
    return Measurement(
        name=f"memcpy_{size}",
        title=f"memcpy {bytes_text(size)}",
        unit="GB/s",
        parse=parsers.limit("gb_per_second"),
        client=pinned(CLIENT_CORE, LIMITS, "copy", size, TIMES),
        size=size,
        most=100_000_000,
        least=100,
    )


def rate_step(program, ucx_test, what):
    """Messages of 8 bytes on one queue pair, with settings of perftest that a user may choose: as
    it comes, and with lists of work requests (-l, and of receives) in longer queues (-t). Not -I:
    perftest takes inline data from the devices that it knows by name only."""
    kind = program.removeprefix("ib_").removesuffix("_bw")
    lists = ("-l", 64, "-t", 512)
    if kind == "send":
        # More receives than SENDs on their way: a list of them is posted when as many are used up.
        lists += ("-r", 1024, "--recv_post_list=64")
    return Step(
        f"{kind}-rate",
        f"{what} of 8 bytes on one queue pair",
        (
            rate(program, name=f"{kind}_rate", remark="as it comes"),
            rate(program, "-l", 16, name=f"{kind}_rate_l16", remark="-l 16"),
            rate(program, *lists, name=f"{kind}_rate_l64", remark=" ".join(map(str, lists))),
            ucx(ucx_test, 8, parsers.ucx_rate, "M/s", name=f"{ucx_test.split('_')[-2]}_rate"),
        ),
    )


# On the wire although both ends are on one host: RoCEv2 over the loopback interface.
WIRE = (("VERBENA_PATH", "wire"),)

# What TCP and UDP go by as well. Other links may take less, and the kernel caches no route from a
# host to an address of its own that is another interface's.
LO = ("-d", "vrb_lo")


def udp(kind, title):
    return Measurement(
        name=kind.replace("-", "_"),
        title=title,
        unit="ns",
        parse=parsers.limit("one_way_ns_middle"),
        client=(LIMITS, kind, CLIENT_CORE, SERVER_CORE, TIMES),
        most=SAMPLES,
    )


UDP = udp("udp", "UDP, 20 bytes, both ends spinning")
# The system calls of RoCEv2 and nothing else: what is above this is ours.
UDP_TRAIN = udp("udp-train", "UDP, as RoCEv2 needs it")

# BTH and ICRC of a packet of RoCEv2.
HEAD_AND_ICRC = 16


def udp_stream(mtu):
    """The trains of RoCEv2 and nothing else: what is below this is ours."""
    packet = mtu + HEAD_AND_ICRC
    return Measurement(
        name=f"udp_stream_{mtu}",
        title=f"UDP, trains of packets of {packet} bytes",
        unit="GB/s",
        parse=parsers.limit("gb_per_second"),
        client=(LIMITS, "udp-stream", CLIENT_CORE, SERVER_CORE, packet, TIMES),
        size=min(65507 // packet, 64) * packet,  # a train
    )


# One stream of the kernel's TCP, with what it chooses by itself.
TCP = Measurement(
    name="tcp",
    title="TCP, one stream (iperf3)",
    unit="GB/s",
    parse=parsers.iperf3,
    server=pinned(SERVER_CORE, "iperf3", "-s", "-1", "-p", PORT),
    client=pinned(CLIENT_CORE, "iperf3", "-c", "localhost", "-p", PORT, "-t", 1, "-J"),
    size=1 << 20,
)


def wire_steps():
    yield Step(
        "wire-lat",
        "SEND and RECV over RoCEv2, one way, 2 B",
        (UDP, UDP_TRAIN, latency("ib_send_lat", 2, *LO, name="wire_send_lat_2", environment=WIRE)),
    )
    size = 1 << 20
    for mtu in (4096, 1024):
        remark = ("RoCEv2", f"MTU {mtu}")
        yield Step(
            f"wire-bw-{mtu}",
            f"WRITE over RoCEv2, 1 MiB, path MTU {mtu}, with ICRC",
            (
                perftest(
                    "ib_write_bw",
                    size,
                    *(*LO, "-N", "-m", mtu),
                    name=f"wire_write_bw_{mtu}",
                    parse=parsers.perftest_bandwidth,
                    unit="GB/s",
                    least=200,
                    remark=remark,
                    environment=WIRE,
                ),
                udp_stream(mtu),
                TCP,
            ),
        )


def connections(count):
    return Measurement(
        name="cmtime",
        title=f"cmtime, {count} connections open at a time",
        unit="ns",
        parse=parsers.cmtime,
        client=(VERBENA, "run", "--", CMTIME_PAIR, TIMES),
        least=count,
        most=count,
        ways=1,
    )


def steps():
    """All of it, in the order in which it runs."""
    yield Step(
        "write-lat",
        "RDMA WRITE, one way, both ends polling",
        (
            LINE,
            latency("ib_write_lat", 2, histogram=True),
            ONE_LINE,
            ucx_latency("ucp_put_lat", 2),
        ),
    )
    yield Step(
        "no-adoption",
        "RDMA WRITE into memory that stays private",
        (
            latency(
                "ib_write_lat",
                2,
                name="write_lat_never",
                remark=("VERBENA_ADOPT=never",),
                environment=(("VERBENA_ADOPT", "never"),),
            ),
        ),
    )
    for size in (2, 64, 4096):
        yield Step(
            f"send-lat-{size}",
            f"SEND and RECV, one way, {bytes_text(size)}",
            (latency("ib_send_lat", size), ucx_latency("tag_lat", size), LINE),
        )
    size = 65536
    yield Step(
        "one-sided-bw",
        "WRITE and READ, 64 KiB",
        (
            bandwidth("ib_write_bw", size),
            ucx_bandwidth("ucp_put_bw", size),
            bandwidth("ib_read_bw", size),
            memcpy(size),
        ),
    )
    yield Step(
        "send-bw",
        "SEND and RECV, 64 KiB",
        (bandwidth("ib_send_bw", size), ucx_bandwidth("tag_bw", size), tag_posix(size)),
    )
    yield rate_step("ib_write_bw", "ucp_put_bw", "WRITEs")
    yield rate_step("ib_send_bw", "tag_bw", "SENDs")
    yield Step(
        "connections",
        "a connection by rdma_cm: set up and taken down",
        (connections(10_000),),
    )
    yield from wire_steps()
    yield from by_size()


def by_size():
    # Each size beside the one before it: what a machine gives away changes from minute to minute.
    for before, size in zip((None, *SIZES), SIZES):
        pair = (before, size) if before else (size,)
        yield Step(
            f"bw-by-size-{size}",
            f"bandwidth, {bytes_text(size)}",
            (
                *(bandwidth("ib_write_bw", each) for each in pair),
                *(bandwidth("ib_read_bw", each) for each in pair),
                *(bandwidth("ib_send_bw", each) for each in pair),
                *(memcpy(each) for each in pair),
            ),
        )
    for size in SIZES:
        yield Step(
            f"ucx-bw-by-size-{size}",
            f"bandwidth of UCX, {bytes_text(size)}",
            (ucx_bandwidth("ucp_put_bw", size), ucx_bandwidth("tag_bw", size), tag_posix(size)),
            only_drawn=True,
        )
    for size in LATENCY_SIZES:
        yield Step(
            f"lat-by-size-{size}",
            f"latency, {bytes_text(size)}",
            (
                latency("ib_write_lat", size, least=50),
                latency("ib_send_lat", size, least=50),
                latency("ib_read_lat", size, least=50),
                ucx_latency("ucp_put_lat", size),
                ucx_latency("tag_lat", size),
            ),
            only_drawn=True,
        )
