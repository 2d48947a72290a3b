#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The NIC in the environments that programs bring: filters, users, limits, namespaces, forks.

`probe` is a set of small programs over verbs; where they can, Debian's unmodified programs run too.
All of them find our library by LD_LIBRARY_PATH, in a folder that every user can read.
"""

import argparse
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "conformance"))
import library  # noqa: E402

SECONDS = 90  # for one case; a busy machine needs a fraction
SKIPPED = 77
EPERM, ENOSYS = 1, 38
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]
# Refused system calls that we can do without; the last list is all of them.
DISPENSABLE = (
    ["userfaultfd"],
    ["process_vm_readv", "process_vm_writev"],
    ["userfaultfd", "process_vm_readv", "process_vm_writev"],
    ["close_range"],
    ["close_range:2"],  # with CLOSE_RANGE_UNSHARE
    ["unshare"],
    ["close_range", "unshare"],
    ["pidfd_open"],
    ["close_range", "unshare", "pidfd_open"],
    ["pidfd_getfd"],
    ["memfd_create:8"],  # with MFD_NOEXEC_SEAL
    ["membarrier"],
    ["fallocate"],
    ["getrandom"],
    ["pwritev"],  # of small WRITEs into memory that is not adopted
    ["lseek"],
)
# Those that we cannot do without: then there is no queue pair, and errno says why.
NEEDED = ("memfd_create", "signalfd4", "epoll_create1", "madvise")
# The least address space that is enough was 12 MB for `pair` and for ibv_rc_pingpong.
ADDRESS_SPACE = 48 << 20


class Places:
    """Our library and the probes, where every user can read them."""

    def __init__(self, options):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="verbena-environment-"))
        self.folder.chmod(0o755)
        for name in ("libibverbs.so", "libibverbs.so.1"):
            shutil.copy(pathlib.Path(options.library) / name, self.folder)
        for name in ("environment_probe", "environment_deny", "environment_loader"):
            shutil.copy(pathlib.Path(options.programs) / name, self.folder)
        self.variables = library.environment(self.folder, options.mode)
        self.variables["TMPDIR"] = "/tmp"

    def path(self, name):
        return str(self.folder / f"environment_{name}")

    def remove(self):
        shutil.rmtree(self.folder)


def run(places, words, before=None, variables=None):
    """What a program printed; raises when it does not end with 0."""

    def prepare():
        library.die_with_parent()
        if before:
            before()

    # A group of its own: when it hangs, its children go with it.
    program = subprocess.Popen(
        words,
        env=variables or places.variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=prepare,
    )
    try:
        output, _ = program.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired as problem:
        os.killpg(program.pid, signal.SIGKILL)
        output, _ = program.communicate()
        raise library.Failure(f"hangs\n{output}") from problem
    if program.returncode == SKIPPED:
        raise Skip(output.splitlines()[0].removeprefix("SKIP "))
    if program.returncode != 0:
        raise library.Failure(f"ends with {program.returncode}\n{output}")
    return output


class Skip(Exception):
    pass


class Report(library.Report):
    def case(self, name, body):
        try:
            super().case(name, body)
        except Skip as why:
            self.skip(name, why)


def limited(**limits):
    def apply():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))

    return apply


def can(words):
    return (
        subprocess.run(
            [*words, "true"], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ).returncode
        == 0
    )


def must_refuse(places, words):
    """There is no queue pair, and the program is told so."""
    try:
        run(places, words)
    except library.Failure as failure:
        if "ibv_create_qp:" not in str(failure) or "signal" in str(failure):
            raise
        return str(failure).splitlines()[1]
    raise library.Failure("works, although it cannot")


def scenarios(report, places):
    names = subprocess.run(
        [places.path("probe")], capture_output=True, text=True, check=False, env=places.variables
    ).stdout.split()
    for name in names:
        report.case(name, lambda: run(places, [places.path("probe"), name]) and None)


def filters(report, places):
    deny = places.path("deny")
    pair = ["--", places.path("probe"), "pair"]
    for error in (EPERM, ENOSYS):
        for calls in (*DISPENSABLE, [call for calls in DISPENSABLE for call in calls]):
            name = f"{os.strerror(error)}: {' '.join(calls)}"
            words = [deny, "-e", str(error), *calls, *pair]
            report.case(name, lambda: run(places, words) and None)
        for call in NEEDED:
            words = [deny, "-e", str(error), call, *pair]
            report.case(f"{os.strerror(error)}: {call}", lambda: must_refuse(places, words))
    # Our descriptors lie in the program's table then.
    for scenario in ("closed-before", "closed-connected", "fork", "spawn", "fork-threads", "idle"):
        words = [deny, "close_range", "unshare", "--", places.path("probe"), scenario]
        report.case(f"no table of our own: {scenario}", lambda: run(places, words) and None)
    no_memory_access = [deny, "userfaultfd", "process_vm_readv", "process_vm_writev", "--"]
    unmodified(report, places, "without userfaultfd and process_vm_*", no_memory_access)


def unmodified(report, places, name, prefix, before=None):
    """Two of Debian's programs, both sides with this in front of them."""
    pingpong = [*prefix, "ibv_rc_pingpong", "-p", "{port}", "-g", "0", "-n", "100", "-e", "-c"]
    write = [*prefix, "ib_write_bw", "-p", "{port}", "-F", "-n", "100", "-s", "4096"]
    for words in (pingpong, write):
        program = words[len(prefix)]

        def body():
            if before:
                previous = [resource.getrlimit(limit) for limit in before]
                for limit, value in before.items():
                    resource.setrlimit(limit, (value, previous[0][1]))
            try:
                library.run_pair(words, places.variables, SECONDS)
            finally:
                if before:
                    for limit, value in zip(before, previous):
                        resource.setrlimit(limit, value)

        report.case(f"{name}: {program}", body)


def users(report, places):
    if os.geteuid() != 0:
        report.skip("an ordinary user", "this is one: all the others show it")
        return
    pair = [places.path("probe"), "pair"]
    report.case("an ordinary user", lambda: run(places, [*NOBODY, *pair]) and None)
    unmodified(report, places, "an ordinary user", NOBODY)


def namespaces(report, places):
    if places.variables.get("VERBENA_PATH") == "wire":
        report.skip("network namespaces", "the wire needs an interface that is up")
        return
    own = ["unshare", "--net"]
    # An ordinary user makes itself root of a namespace of its own first.
    ordinary = NOBODY if os.geteuid() == 0 else []
    users_own = [*ordinary, "unshare", "--user", "--map-root-user", "--net"]
    for name, words in (
        ("a network namespace with a lo that is down", own),
        ("the same, of an ordinary user", users_own),
    ):
        if not can(words):
            report.skip(name, f"{' '.join(words)} is not allowed here")
            continue
        for probe in ("pair", "loopback", "fork"):
            program = [*words, places.path("probe"), probe]
            report.case(f"{name}: {probe}", lambda: run(places, program) and None)


def limits(report, places):
    pair = [places.path("probe"), "pair"]
    many = [places.path("probe"), "many-peers"]
    table = {
        f"ulimit -v {ADDRESS_SPACE >> 10}": (limited(RLIMIT_AS=ADDRESS_SPACE), pair),
        "ulimit -n 24": (limited(RLIMIT_NOFILE=24), pair),
        "ulimit -n 256, 230 peers": (None, many),
        "ulimit -l 0": (limited(RLIMIT_MEMLOCK=0), pair),
        "ulimit -i 0": (limited(RLIMIT_SIGPENDING=0), pair),
        "ulimit -s 128": (limited(RLIMIT_STACK=128 << 10), pair),
        "ulimit -c 0": (limited(RLIMIT_CORE=0), pair),
    }
    for name, (before, words) in table.items():
        report.case(name, lambda: run(places, words, before) and None)
    unmodified(report, places, "ulimit -v", [], {resource.RLIMIT_AS: ADDRESS_SPACE})
    unmodified(report, places, "ulimit -n 256", [], {resource.RLIMIT_NOFILE: 256})


def loading(report, places):
    report.case("dlopen and dlclose", lambda: run(places, [places.path("loader")]) and None)
    eager = {**places.variables, "LD_BIND_NOW": "1"}
    pair = [places.path("probe"), "pair"]
    report.case("LD_BIND_NOW", lambda: run(places, pair, variables=eager) and None)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="the folder that has libibverbs.so.1")
    parser.add_argument("--programs", required=True, help="the folder of environment_probe")
    library.add_mode(parser, several=False)
    library.add_sample(parser)
    parser.add_argument("--only", metavar="REGEX", help="run only the cases whose name matches")
    options = parser.parse_args()
    places = Places(options)
    report = Report(options.only, options.sample)
    try:
        for part in (scenarios, filters, users, namespaces, limits, loading):
            part(report, places)
    finally:
        places.remove()
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
