# SPDX-License-Identifier: MIT
"""Runs the programs that are measured: a server and its client, or one alone. Whatever happens,
nothing that was started here is left behind."""

import contextlib
import ctypes
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)
LISTENING = "0A"  # in /proc/net/tcp


class Failed(Exception):
    """A program failed; the text has its command, its status and what it said."""


def die_with_parent():
    """In the child, before it becomes the program: the bench may be killed, too."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def environment(extra):
    """What both sides are given: nothing that was set for one of them by chance."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VERBENA_", "UCX_", "LD_", "IBV_", "RDMAV_", "MLX"))
    }
    return {**kept, "LC_ALL": "C", **extra}


class Program:
    """A program that runs, its output in files: a pipe that fills up would stop it."""

    def __init__(self, command, extra_environment):
        self.command = [str(word) for word in command]
        self.extra = extra_environment
        self.stdout = tempfile.TemporaryFile()
        self.stderr = tempfile.TemporaryFile()
        try:
            # A session of its own: Ctrl-C at the terminal is for the bench, which ends it in order.
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=self.stdout,
                stderr=self.stderr,
                env=environment(extra_environment),
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            self.close()
            raise Failed(f"{self.shown()}\n  cannot be started: {error}") from error

    def shown(self):
        return shown(self.command, self.extra)

    def text(self, file):
        file.seek(0)
        return file.read().decode(errors="replace")

    def output(self):
        return self.text(self.stdout)

    def end(self):
        """Ends it if it still runs, by its own id and that of its session."""
        if self.process.poll() is None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(timeout=2)
                    break
        self.close()

    def close(self):
        self.stdout.close()
        self.stderr.close()

    def wait(self, until):
        """The exit status, or None when it still ran at that time."""
        try:
            return self.process.wait(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    def story(self):
        status = self.process.poll()
        if status is None:
            end = "still running"
        elif status < 0:
            end = f"ended by {signal.Signals(-status).name}"
        else:
            end = f"exit status {status}"
        lines = [f"{self.shown()}", f"  {end}"]
        for name, file in (("stdout", self.stdout), ("stderr", self.stderr)):
            said = self.text(file).strip().splitlines()
            lines += [f"  {name}: {line}" for line in said[-15:]]
        return "\n".join(lines)


def shown(command, extra_environment):
    """A command as one types it."""
    words = [f"{name}={value}" for name, value in extra_environment.items()]
    return shlex.join(words + [str(word) for word in command])


def free_port():
    """A port of TCP that nobody listens on."""
    with socket.socket(socket.AF_INET6) as tcp:
        tcp.bind(("::", 0))
        return tcp.getsockname()[1]


def listening(port):
    """Looked up, not tried: both perftests take the first connection for their client."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as file:
            for line in file:
                words = line.split()
                if len(words) > 3 and words[3] == LISTENING:
                    if int(words[1].rpartition(":")[2], 16) == port:
                        return True
    return False


def await_listener(server, port, seconds):
    until = time.monotonic() + seconds
    while not listening(port):
        if server.process.poll() is not None:
            raise Failed(f"the server ended before it listened\n{server.story()}")
        if time.monotonic() > until:
            raise Failed(f"the server does not listen on port {port}\n{server.story()}")
        time.sleep(0.005)


def run(server_command, client_command, extra_environment, port, timeout):
    """Runs a pair, or one program alone when server_command is None. Returns what the client said.
    Both have to end well."""
    with contextlib.ExitStack() as started:
        programs = []

        def start(command):
            program = Program(command, extra_environment)
            started.callback(program.end)
            programs.append(program)
            return program

        until = time.monotonic() + timeout
        if server_command is not None:
            await_listener(start(server_command), port, min(timeout, 15))
        client = start(client_command)
        for program in reversed(programs):
            if program.wait(until) != 0:
                what = "did not end in time" if program.process.poll() is None else "failed"
                for other in programs:
                    other.wait(time.monotonic() + 0.5)  # its last words may tell more
                raise Failed(
                    f"a program {what}\n" + "\n".join(other.story() for other in programs)
                )
        return client.output()
