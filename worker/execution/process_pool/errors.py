"""Errors of calls in the process pool, in addition to the exceptions of the function."""

from __future__ import annotations

from sluice.worker.errors import JobError, TransientError


class ReportedError(Exception):
    """Base of exceptions, other than `JobError`, that a function in the pool may raise to its
    caller. Their constructors check their arguments, because the process may be compromised."""


class ComputeCrashed(TransientError):
    """The process ended during the call."""

    kind = "compute_crashed"

    def __init__(self) -> None:
        super().__init__("the child process was killed during the call, perhaps by lack of memory")


class ComputeError(JobError):
    """The call, its result or its exception has no plain form, or the reply is invalid."""

    kind = "compute_error"


class ComputeTimeout(JobError):
    """The call exceeded its timeout, and its process was killed."""

    kind = "compute_timeout"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"the call takes longer than {timeout_s:g} s")
        self.timeout_s = timeout_s


class OutOfMemory(JobError):
    """The call needs more memory than its process may use."""

    kind = "out_of_memory"

    def __init__(self, memory_bytes: int) -> None:
        super().__init__(
            f"the call needs more than {memory_bytes >> 20} MB of memory; use smaller input"
        )
        self.memory_bytes = memory_bytes
