#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Programs whose memory is registered keep the meaning of their memory.

`memory_probe` is a set of small programs over verbs. Each runs with each carrier (--mode), and some
of them also with other allocators, with a peer of another kind, and where system calls are refused.
With --careless they run around a library that makes mistakes on purpose: then each that is named
here must fail, or it would not notice the mistake in ours either.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "conformance"))
import library  # noqa: E402

LONG = os.environ.get("VERBENA_TEST_MODE") == "long"
SECONDS = 600 if LONG else 90  # for one case; a busy machine needs a fraction
SKIPPED = 77
EPERM, ENOSYS = 1, 38
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]
ALLOCATORS = {
    "jemalloc": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
    "mimalloc": "libmimalloc.so.2",
}
# What depends on the allocator.
WITH_ALLOCATORS = ("churn", "calloc-zero", "trim", "realloc", "fork-free", "plain")
# What shows that another kind of peer is served: another thread of this process, or a process that
# has no number here.
WITH_OTHER_PEERS = (
    "plain",
    "adopted",
    "churn",
    "ranges",
    "fork-writes",
    "increments",
    "unmapped",
    "dontneed-after",
)
# What depends on how memory can be moved.
WITH_REFUSALS = (
    "plain",
    "adopted",
    "churn",
    "calloc-zero",
    "fork-writes",
    "increments",
    "first-touches",
    "uring-fixed-before",
    "dontneed-after",
    "mremap-after",
    "unmapped",
    "calls-meanwhile",
    "handlers",
)
REFUSALS = (["userfaultfd"], ["process_vm_readv", "process_vm_writev"])
# What a program says to the kernel about memory while it is registered: means the same only with
# our preload, which hears it.
WITH_PRELOAD = ("dontneed-registered", "free-registered", "mremap-registered", "flags-meanwhile")
PRELOAD = "libverbena-preload.so"
# What cannot be as it should where memory is adopted: the scenario, how it must fail, and why. When
# it passes it is to go from here.
KNOWN_LIMITS = {
    "dontneed-by-system-call": (
        "given back while registered",
        "nobody sees MADV_DONTNEED by a system call past libc: adopted memory keeps its bytes",
    ),
}
ATTEMPTS = 12
# Mistakes of careless.cc, and who must notice them.
NOTICED = {
    "keep": """ranges mremap-after mremap-registered unmapped neighbours fork-writes
        fork-without-handlers clone-writes fork-free fork-threads fork-and-register static-memory
        sleepers dontneed-after dontneed-registered dontneed-by-system-call free-after
        free-registered read-only kept-flags flags-meanwhile no-descriptors no-address-space
        transparent-huge shared-kinds shared-anonymous""".split(),
    "hasty": """churn brk-heap unmapped-hole protection increments first-touches calls-meanwhile
        handlers crowds other-stacks uring-fixed-before uring-fixed-meanwhile direct-reads
        direct-reads-in-flight outside-writes""".split(),
    "forget": """trim realloc fork-before spawns sparse spliced stacks thread-local
        plain""".split(),
    "hoard": "many-regions few-descriptors address-limit memory-group".split(),
}


class Skip(Exception):
    pass


class Report(library.Report):
    def case(self, name, body):
        try:
            super().case(name, body)
        except Skip as why:
            self.skip(name, why)


class Places:
    """Our library and the programs, where every user can read them."""

    def __init__(self, options):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="verbena-memory-"))
        self.folder.chmod(0o755)
        for name in ("libibverbs.so", "libibverbs.so.1"):
            shutil.copy(pathlib.Path(options.library) / name, self.folder)
        for name in ("memory_probe", "environment_deny", "libmemory_careless.so"):
            shutil.copy(pathlib.Path(options.programs) / name, self.folder)
        self.preload = []
        if (pathlib.Path(options.library) / PRELOAD).exists():
            shutil.copy(pathlib.Path(options.library) / PRELOAD, self.folder)
            self.preload = [self.path(PRELOAD)]

    def path(self, name):
        return str(self.folder / name)

    def remove(self):
        shutil.rmtree(self.folder)


def preloadable():
    """The allocators that are installed, name to path."""
    listed = subprocess.run(
        ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True
    ).stdout
    found = dict(re.findall(r"^\s*(\S+) \(.*\) => (\S+)$", listed, re.MULTILINE))
    return {name: found.get(file) for name, file in ALLOCATORS.items()}


class HugePages:
    """Lets programs have a few huge pages while this lives, if we may."""

    PATH = pathlib.Path("/proc/sys/vm/nr_overcommit_hugepages")
    WANTED = 8

    def __enter__(self):
        self.before = None
        try:
            before = int(self.PATH.read_text())
            if before < self.WANTED:
                self.PATH.write_text(str(self.WANTED))
                self.before = before
        except OSError:
            pass  # the scenario says that there are none

    def __exit__(self, *_):
        if self.before is not None:
            self.PATH.write_text(str(self.before))


class MemoryGroup:
    """A control group with a limit on memory, of either version, while this lives; `join` is the
    file to which a process writes its number."""

    LIMIT = 112 << 20

    def __init__(self):
        self.folder, self.join, self.why = None, None, None

    def __enter__(self):
        places = (
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        )
        reasons = []
        for root, limit in places:
            folder = pathlib.Path(root) / f"verbena-test-{os.getpid()}"
            if not pathlib.Path(root, "cgroup.procs").exists():
                continue
            try:
                folder.mkdir()
                self.folder = folder
                (folder / limit).write_text(str(self.LIMIT))
                self.join = str(folder / "cgroup.procs")
                return self
            except OSError as problem:
                reasons.append(str(problem))
                self.remove()
        self.why = "; ".join(reasons) or "no control group for memory is mounted"
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        if self.folder is not None:
            # The processes have been waited for; the kernel takes a moment longer.
            library.wait_for(self.is_removed, 5, 0.05)
            self.folder = None

    def is_removed(self):
        try:
            self.folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return False
        return True


class Runner:
    def __init__(self, places, variables, group):
        self.places = places
        self.variables = variables
        self.group = group

    def names(self):
        return subprocess.run(
            [self.places.path("memory_probe")],
            capture_output=True,
            text=True,
            check=False,
            env=self.variables,
        ).stdout.split()

    def adopts(self):
        path, adopt = (self.variables.get(name) for name in library.MODE_VARIABLES)
        return path != "ring" and adopt != "never"

    def run_limited(self, name, **how):
        """One of KNOWN_LIMITS: it must fail as expected, unless nothing was adopted."""
        what, why = KNOWN_LIMITS[name]
        try:
            notes = self.run(name, **how)
        except library.Failure as failure:
            if what not in str(failure):
                raise
            return f"fails, a known limit: {why}"
        if "nothing was adopted" in notes:
            return notes
        raise library.Failure("passes, but is listed as a known limit")

    def run(self, name, prefix=(), peer="process", preload=(), **more):
        """One scenario, to its end; gives its notes. Raises when it fails, hangs or is skipped."""
        variables = {**self.variables, **more}
        if preload:
            variables["LD_PRELOAD"] = ":".join(preload)
        if self.group.join:
            variables["VERBENA_TEST_CGROUP"] = self.group.join
        program = subprocess.Popen(
            [*prefix, self.places.path("memory_probe"), name, peer],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=library.die_with_parent,
        )
        try:
            output, _ = program.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired as problem:
            os.killpg(program.pid, signal.SIGKILL)
            output, _ = program.communicate()
            raise library.Failure(f"hangs\n{output}") from problem
        if program.returncode == SKIPPED:
            lines = [line for line in output.splitlines() if line.startswith("SKIP ")]
            why = lines[0].removeprefix("SKIP ") if lines else "NO REASON GIVEN"
            raise Skip(why + (f" ({self.group.why})" if name == "memory-group" else ""))
        if program.returncode != 0:
            raise library.Failure(f"ends with {program.returncode}\n{output}")
        return "; ".join(
            line.removeprefix("note: ") for line in output.splitlines() if line.startswith("note: ")
        )


def run_mode(report, runner, mode, is_brief):
    """All scenarios, and some in each other circumstance, with fewer rounds."""
    brief = {} if LONG else {"VERBENA_TEST_BRIEF": "1"}

    def case(name, what="", **how):
        title = f"{mode}: {name}{what}" if mode else f"{name}{what}"
        run = runner.run
        if name in KNOWN_LIMITS and runner.adopts():
            run = runner.run_limited
        elif name in WITH_PRELOAD and runner.adopts():
            if not runner.places.preload:
                report.skip(title, f"{PRELOAD} is not there: build it first")
                return
            how["preload"] = runner.places.preload
        report.case(title, lambda: run(name, **how))

    for name in runner.names():
        case(name, **(brief if is_brief else {}))
    for allocator, path in preloadable().items():
        if path is None:
            report.skip(allocator, "it is not installed: run scripts/setup test")
            continue
        for name in WITH_ALLOCATORS:
            case(name, f" ({allocator})", preload=[path], **brief)
    for peer in ("thread", "pid-namespace"):
        for name in WITH_OTHER_PEERS:
            case(name, f" (peer: {peer})", peer=peer, **brief)
    for calls in (*REFUSALS, [call for calls in REFUSALS for call in calls]):
        for error in (EPERM, ENOSYS) if LONG else (EPERM,):
            prefix = [runner.places.path("environment_deny"), "-e", str(error), *calls, "--"]
            for name in WITH_REFUSALS:
                case(name, f" ({os.strerror(error)}: {' '.join(calls)})", prefix=prefix, **brief)
    if os.geteuid() == 0:
        for name in WITH_REFUSALS:
            case(name, " (an ordinary user)", prefix=NOBODY, **brief)
    else:
        report.skip("an ordinary user", "this is one: all the others show it")


def check_careless(report, runner, mistake, name, preload):
    """Passes when the scenario fails; its note is what it found."""

    def body():
        # A race that a mistake opens is not lost every time.
        for _ in range(ATTEMPTS):
            try:
                runner.run(name, preload=preload, VERBENA_TEST_CARELESS=mistake)
            except library.Failure as failure:
                lines = str(failure).splitlines()
                return next((line for line in lines if line.startswith("FAIL ")), lines[0])
        raise library.Failure(f"does not notice the mistake `{mistake}`")

    report.case(f"{mistake}: {name}", body)


def run_careless(report, runner):
    preload = [runner.places.path("libmemory_careless.so")]
    for mistake, names in NOTICED.items():
        for name in names:
            check_careless(report, runner, mistake, name, preload)
    # The allocator that trusts most in zeros of the kernel.
    jemalloc = preloadable()["jemalloc"]
    if jemalloc is None:
        report.skip("keep: calloc-zero", "jemalloc is not installed: run scripts/setup test")
    else:
        check_careless(report, runner, "keep", "calloc-zero", [*preload, jemalloc])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="the folder that has libibverbs.so.1")
    parser.add_argument("--programs", required=True, help="the folder of memory_probe")
    library.add_mode(parser)
    parser.add_argument("--brief", action="store_true", help="fewer rounds, unless it is long")
    parser.add_argument("--careless", action="store_true", help="test the tests")
    parser.add_argument("--only", metavar="REGEX", help="run only the cases whose name matches")
    options = parser.parse_args()
    places = Places(options)
    report = Report(options.only)
    start = time.monotonic()
    try:
        with HugePages(), MemoryGroup() as group:
            # Without adoption of our own: what is found is the mistake that was made on purpose.
            modes = ["never"] if options.careless else library.modes(options.mode)
            for mode in modes:
                variables = library.environment(places.folder, mode)
                variables["TMPDIR"] = "/tmp"
                runner = Runner(places, variables, group)
                if options.careless:
                    run_careless(report, runner)
                else:
                    run_mode(report, runner, mode, options.brief)
    finally:
        places.remove()
    print(f"in {time.monotonic() - start:.0f} s")
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
