#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Many processes that connect, exchange and die at random.

Each process is a chaos_worker, which knows verbs only and finds our library by LD_LIBRARY_PATH.
This driver introduces them to each other, ends them in all the ways there are, and starts others in
their place. What has to hold:
  * a survivor's work requests end in exactly one completion each, in order: success, with the right
    content at the other end, or a failure when the peer is gone, and only then;
  * no survivor hangs (--patience bounds how long a request may be open while nothing moves);
  * memory that is nobody's target does not change;
  * what survivors hold (descriptors, mappings, threads) does not grow;
  * at the end nothing is left: no abstract name, no process, no file.

A run is repeated by --seed, as far as the scheduler lets it. Everything happens in a network
namespace of its own, so that other users of the NIC on this host are not in the way.
"""

import argparse
import collections
import ctypes
import errno
import os
import pathlib
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "conformance"))
import library  # noqa: E402
import starving  # noqa: E402

LONG = os.environ.get("VERBENA_TEST_MODE") == "long"
DEATHS = ("exit", "quick", "abort", "segv", "exec", "fork", "kill", "stop-kill")
HARMLESS = ("stop-continue", "child", "break", "error", "revoke")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NAMESPACE_MARK = "VERBENA_CHAOS_NAMESPACE"


def enter_namespace():
    """Starts over in a network namespace of our own; returns when we are there, or cannot be."""
    if NAMESPACE_MARK in os.environ:
        return os.environ[NAMESPACE_MARK] == "own"
    for words in (["unshare", "--net"], ["unshare", "--user", "--map-root-user", "--net"]):
        if subprocess.run([*words, "true"], check=False, stderr=subprocess.DEVNULL).returncode == 0:
            os.environ[NAMESPACE_MARK] = "own"
            script = 'ip link set lo up && exec "$0" "$@"'
            os.execvp(words[0], [*words, "sh", "-c", script, sys.executable, *sys.argv])
    os.environ[NAMESPACE_MARK] = "shared"
    return False


def abstract_names():
    with open("/proc/net/unix", encoding="utf-8") as lines:
        return sorted(line.split()[-1] for line in lines if "@verbena/" in line)


class Failed(Exception):
    pass


class Worker:
    def __init__(self, chaos, number):
        self.number = number
        self.sessions = set()
        self.is_dying = False
        self.stopped_until = None
        self.answers = []
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.socket = ours
        seed = chaos.random.getrandbits(32)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                chaos.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if chaos.hogs:
                    chaos.hogs.starve(number)
                os.set_inheritable(theirs.fileno(), True)
                os.dup2(chaos.log.fileno(), 1)
                os.dup2(chaos.log.fileno(), 2)
                fd = str(theirs.fileno())
                words = [chaos.options.worker, "--driver", fd, "--seed", str(seed)]
                words += ["--patience", str(chaos.options.patience)]
                words += ["--freeze", str(int(chaos.options.freeze))]
                words += ["--wire", str(int(chaos.is_wire))]
                words += ["--timeout", str(chaos.timeout)]
                os.execve(words[0], words, chaos.variables)
            finally:
                os._exit(127)
        theirs.close()
        chaos.started += 1

    def say(self, text):
        try:
            self.socket.send(text.encode(), socket.MSG_DONTWAIT)
        except OSError as problem:
            if problem.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise Failed(f"process {self.pid} does not read: {problem}") from problem


class Session:
    def __init__(self, number, kind, seed, members):
        self.number = number
        self.kind = kind
        self.seed = seed
        self.members = members
        self.addresses = {}
        self.set = set()
        self.done = set()
        self.is_stopping = False
        self.broken_by = None


class Chaos:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.libc = ctypes.CDLL(None)
        self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.folder = tempfile.mkdtemp(prefix="verbena-chaos-")
        self.log = open(os.path.join(self.folder, "log"), "w+b")
        self.variables = library.environment(options.library, options.mode)
        self.variables["TMPDIR"] = self.folder
        self.is_wire = self.variables.get("VERBENA_PATH") == "wire"
        # Processes end by signals, and have children, on purpose.
        self.variables["TSAN_OPTIONS"] = ":".join(
            [self.variables.get("TSAN_OPTIONS", "halt_on_error=1"), "handle_segv=0"]
            + ["handle_abort=0", "die_after_fork=0"]
        )
        # A peer that is not connected yet counts as silence (docs/decisions/0003), which is borne
        # for eight tries, and on a wire so does one that does not run: 8 s, or 17.
        self.waits_for_both = options.starved or self.is_wire
        usual = 19 if options.starved and self.is_wire else 18
        self.timeout = options.timeout or usual
        self.workers = {}  # by descriptor
        self.by_pid = {}
        self.sessions = {}
        self.next_session = 0
        self.poller = select.epoll()
        self.counts = collections.Counter()
        self.started = 0
        self.ends = {}  # statuses, by pid
        self.hogs = starving.Hogs() if options.starved else None

    # -- processes

    def start_worker(self):
        worker = Worker(self, self.started)
        self.workers[worker.socket.fileno()] = worker
        self.by_pid[worker.pid] = worker
        self.poller.register(worker.socket.fileno(), select.EPOLLIN)

    def gone(self, worker):
        """Its end of the socket is closed: it is dead, or has become something else."""
        fd = worker.socket.fileno()
        self.poller.unregister(fd)
        del self.workers[fd]
        worker.socket.close()
        if not worker.is_dying:
            raise Failed(f"process {worker.pid} died by itself: {self.fate(worker.pid)}")
        for number in list(worker.sessions):
            self.leave(self.sessions[number], worker)

    def fate(self, pid):
        for _ in range(100):
            self.reap()
            if pid in self.ends:
                return f"status {self.ends[pid]}"
            time.sleep(0.02)
        return "it still runs"

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            worker = self.by_pid.pop(pid, None)
            code = os.waitstatus_to_exitcode(status)
            if worker is not None:
                self.ends[pid] = code
            # A child of a worker that found something wrong, or hung.
            if worker is None and code != 0:
                raise Failed(f"a forked child ended with {code}")

    # -- sessions

    def introduce(self):
        free = [w for w in self.workers.values() if self.can_talk(w)]
        self.random.shuffle(free)
        while len(free) >= 2:
            one, other = free.pop(), free.pop()
            kinds = ("rc",) * 6 + ("uc", "ud") + ("xrc",) * 2
            self.next_session += 1
            kind, seed = self.random.choice(kinds), self.random.getrandbits(48)
            session = Session(self.next_session, kind, seed, [one, other])
            self.sessions[session.number] = session
            for role, member in enumerate(session.members):
                member.sessions.add(session.number)
                member.say(f"open {session.number} {kind} {seed} {role} {self.options.steps}")

    def can_talk(self, worker):
        return not worker.is_dying and len(worker.sessions) < self.options.sessions

    def leave(self, session, worker):
        worker.sessions.discard(session.number)
        session.members.remove(worker)
        if not session.members:
            del self.sessions[session.number]
        elif not session.is_stopping:
            session.members[0].say(f"lost {session.number}")

    def heard(self, worker, text):
        words = text.split()
        if words[0] == "fail":
            raise Failed(f"process {worker.pid}: {text[5:]}" + self.describe(worker))
        if words[0] in ("hello", "bye", "audit"):
            worker.answers.append(text)
            return
        session = self.sessions.get(int(words[1]))
        if session is None or worker not in session.members:
            return
        if words[0] == "ready":
            session.addresses[worker] = " ".join(words[2:])
            if len(session.addresses) == 2 and len(session.members) == 2:
                for one, other in (session.members, session.members[::-1]):
                    one.say(f"go {session.number} {session.addresses[other]}")
                    if not self.waits_for_both:
                        one.say(f"start {session.number}")
        elif words[0] == "set" and self.waits_for_both:
            session.set.add(worker)
            if len(session.set) == 2:
                for member in session.members:
                    member.say(f"start {session.number}")
        elif words[0] == "done":
            session.done.add(worker)
            if len(session.done) == 2 and len(session.members) == 2:
                session.is_stopping = True
                for member in session.members:
                    member.say(f"stop {session.number}")
        elif words[0] == "revoked":
            self.counts[f"{session.kind} revoked"] += 1
            for member in session.members:
                if member is not worker and not session.is_stopping:
                    member.say(f"pardon {session.number}")
        elif words[0] == "closed":
            self.counts[f"{session.kind} {words[2]}"] += 1
            if words[2] == "broken":
                session.broken_by = worker.pid
            self.leave(session, worker)

    # -- what happens to them

    def strike(self):
        """Something happens to somebody."""
        living = [w for w in self.workers.values() if not w.is_dying and w.stopped_until is None]
        if not living:
            return
        worker = self.random.choice(living)
        how = self.random.choice(DEATHS + HARMLESS)
        self.counts[f"* {how}"] += 1
        if how in ("break", "error", "revoke"):
            if worker.sessions:
                worker.say(f"{how} {self.random.choice(sorted(worker.sessions))}")
        elif how == "child":
            worker.say("child")
        elif how == "stop-continue":
            os.kill(worker.pid, signal.SIGSTOP)
            worker.stopped_until = time.monotonic() + self.random.uniform(0.01, 1.5)
        else:
            worker.is_dying = True
            if how == "kill":
                os.kill(worker.pid, signal.SIGKILL)
            elif how == "stop-kill":
                os.kill(worker.pid, signal.SIGSTOP)
                worker.stopped_until = time.monotonic() + self.random.uniform(0.01, 1)
            else:
                worker.say(f"die {how}")

    def let_go_on(self):
        now = time.monotonic()
        for worker in self.workers.values():
            if worker.stopped_until is not None and worker.stopped_until <= now:
                worker.stopped_until = None
                os.kill(worker.pid, signal.SIGKILL if worker.is_dying else signal.SIGCONT)

    # -- the run

    def turn(self, seconds):
        for fd, events in self.poller.poll(seconds):
            worker = self.workers.get(fd)
            while worker is not None and fd in self.workers:
                try:
                    text = worker.socket.recv(4096, socket.MSG_DONTWAIT).decode()
                except BlockingIOError:
                    break
                except ConnectionResetError:
                    continue  # told once; what it had said before its end is still there
                if not text:
                    self.gone(worker)
                    break
                self.heard(worker, text)
        self.let_go_on()
        self.reap()

    def run(self):
        deadline = None
        next_strike = 0
        launch_limit = time.monotonic() + self.options.patience
        while deadline is None or time.monotonic() < deadline:
            for _ in range(min(10, self.options.processes - len(self.workers))):
                self.start_worker()
            self.turn(0.02)
            self.introduce()
            now = time.monotonic()
            if deadline is None:
                if now > launch_limit:
                    raise Failed("the processes do not start")
                if sum(bool(w.answers) for w in self.workers.values()) >= self.options.processes:
                    deadline = now + self.options.seconds
                    next_strike = now
                continue
            while next_strike <= now:
                next_strike += self.random.expovariate(self.options.deaths)
                self.strike()

    def finish(self):
        """No more deaths: all sessions end, then all processes, and what is left is looked at."""
        self.wait_for(lambda: not self.sessions and not self.restless(), "sessions do not end")
        while self.workers:
            staying = list(self.workers.values())
            if len(staying) <= 3:
                self.audit(staying)
            leaving = staying[3:] or staying[:1]
            for worker in leaving:
                worker.is_dying = True
                worker.say("quit")
            fds = [worker.socket.fileno() for worker in leaving]
            self.wait_for(
                lambda: not any(fd in self.workers for fd in fds), "processes do not quit"
            )
            missing = [worker.pid for worker in leaving if "bye" not in worker.answers]
            if missing:
                raise Failed(f"processes {missing} ended without a word")
        if self.hogs:
            self.hogs.end()
        self.wait_for(lambda: not self.reap(), "processes are left")
        left = abstract_names()
        if left and os.environ[NAMESPACE_MARK] == "own":
            raise Failed(f"names are left: {left}")
        files = [name for name in os.listdir(self.folder) if name != "log"]
        if files:
            raise Failed(f"files are left: {files}")

    def restless(self):
        return any(w.is_dying or w.stopped_until is not None for w in self.workers.values())

    def audit(self, staying):
        """Few are left: what they hold must be little, whatever happened before."""
        most = {
            # Files of each process that are mapped, of itself, too: the page, the published
            # tables, adopted memory (two), the ways of datagrams (two), and those that have room
            # for the next connections (two).
            "shared": 8 * len(staying),
            # The program's, the NIC's, that of the control socket; one watches for the wire.
            "threads": 4 if self.is_wire else 3,
        }

        def problems():
            found = []
            for worker in staying:
                worker.answers.clear()
                worker.say("audit")
            self.wait_for(lambda: all(w.answers for w in staying), "no answer to an audit")
            for worker in staying:
                words = worker.answers[0].split()
                numbers = {words[i]: int(words[i + 1]) for i in range(1, len(words), 2)}
                self.last_audit = worker.answers[0]
                for name, limit in most.items():
                    if numbers[name] > limit:
                        found.append(f"{worker.pid} has {numbers[name]} {name}, not {limit}")
                if len(staying) == 1:
                    print(f"the last process holds: {worker.answers[0][6:]}")
            return found

        deadline = time.monotonic() + self.options.patience
        while (found := problems()) and time.monotonic() < deadline:
            time.sleep(0.2)  # the deaths of the others are still being noticed
        if found:
            raise Failed("\n".join(found))

    def wait_for(self, condition, problem):
        deadline = time.monotonic() + self.options.patience + 10
        while not condition():
            self.turn(0.05)
            if time.monotonic() > deadline:
                raise Failed(problem + self.describe())

    def describe(self, worker=None):
        lines = []
        for session in self.sessions.values():
            if worker is not None and worker not in session.members:
                continue
            members = [f"{w.pid}{' dying' if w.is_dying else ''}" for w in session.members]
            members.append("stopping" if session.is_stopping else "")
            members.append("done: " + ", ".join(str(w.pid) for w in session.done))
            members.append("broken by " + str(session.broken_by))
            lines.append(f"session {session.number} {session.kind}: {', '.join(members)}")
        return "\n" + "\n".join(lines[:20])

    def end_all(self):
        for worker in self.by_pid.values():
            try:
                os.kill(worker.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.hogs:
            self.hogs.end()

    def words_of_children(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")


def show_stacks(chaos):
    if not shutil.which("gdb"):
        return
    for pid in chaos.options.stacks:
        subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt"], check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True, help="the folder that has libibverbs.so.1")
    parser.add_argument("--worker", required=True)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--seconds", type=float, default=60 if LONG else 12)
    parser.add_argument("--brief", action="store_true", help="half the time, unless it is long")
    library.add_mode(parser, several=False)
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--sessions", type=int, default=2, help="of one process at a time")
    parser.add_argument("--steps", type=int, default=20, help="of a side of a session, on average")
    parser.add_argument("--deaths", type=float, default=8, help="a second")
    parser.add_argument("--patience", type=int, default=60, help="seconds until a wait is a hang")
    parser.add_argument("--timeout", type=int, help="of a try, as the attribute counts it")
    parser.add_argument("--starved", action="store_true", help="on one processor, beside hogs")
    parser.add_argument("--freeze", action="store_true", help="on failure: stop, for a debugger")
    options = parser.parse_args()
    options.library = str(pathlib.Path(options.library).resolve())
    if options.brief and not LONG:
        options.seconds /= 2
    if not enter_namespace():
        print("SKIP names left behind: no network namespace of our own is allowed here")
    print(f"--seed={options.seed}", flush=True)

    chaos = Chaos(options)
    problem = None
    try:
        chaos.run()
        chaos.finish()
    except Failed as failed:
        problem = str(failed)
        if options.freeze:
            print(f"FAIL {problem}\nfrozen: driver {os.getpid()}", flush=True)
            signal.pause()
    finally:
        chaos.end_all()
    words = chaos.words_of_children()
    shutil.rmtree(chaos.folder)
    for name, count in sorted(chaos.counts.items()):
        print(f"{count:8} {name}")
    print(f"{chaos.started:8} processes, {chaos.next_session} sessions")
    if problem is None and "FAIL" in words:
        problem = "a child found something wrong"
    if "ThreadSanitizer" in words:
        problem = f"{problem or ''}\nthe thread sanitizer found something"
    if problem is not None:
        print(words[-8000:])
        print(f"FAIL chaos --seed={options.seed}: {problem}")
    print("0 passed, 1 failed" if problem else "1 passed, 0 failed")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
