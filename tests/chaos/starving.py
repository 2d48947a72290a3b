# SPDX-License-Identifier: MIT
"""Processors that are busy with something else: on one of them the processes of a run get what
programs that never sleep leave over.
"""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
HOGS = 2
# What the kernel calls those that run when nobody else would, those that are nice, and all others.
POLICIES = (
    lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)),
    lambda: os.nice(19),
    lambda: None,
)


class Hogs:
    """Programs that never sleep, all on one processor."""

    def __init__(self):
        self.cpu = min(os.sched_getaffinity(0))
        self.pids = [self.start() for _ in range(HOGS)]

    def start(self):
        pid = os.fork()
        if pid:
            return pid
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.sched_setaffinity(0, {self.cpu})
        while True:
            pass

    def starve(self, number):
        """Called by the process itself: it lives beside them from now on."""
        os.sched_setaffinity(0, {self.cpu})
        POLICIES[number % len(POLICIES)]()

    def end(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.pids = []
