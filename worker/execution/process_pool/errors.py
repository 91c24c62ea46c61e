"""How work in another process can fail, beside what it raises itself."""

from __future__ import annotations

from worker.errors import JobError, TransientError


class ComputeCrashed(TransientError):
    """The process ended in the middle of the work."""

    kind = "compute_crashed"

    def __init__(self) -> None:
        super().__init__("the process that did the work was killed, perhaps for lack of memory")


class ComputeError(JobError):
    """The work could not be handed over, or failed with something that cannot be handed back."""

    kind = "compute_error"


class ComputeTimeout(JobError):
    """The work took longer than it may, and its process was killed."""

    kind = "compute_timeout"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"it takes longer than {timeout_s:g} s")
        self.timeout_s = timeout_s

    def __reduce__(self) -> tuple[type[ComputeTimeout], tuple[float]]:
        return ComputeTimeout, (self.timeout_s,)


class OutOfMemory(JobError):
    """The work takes more memory than its process may have."""

    kind = "out_of_memory"

    def __init__(self, memory_bytes: int) -> None:
        super().__init__(
            f"it takes more than {memory_bytes >> 20} MB of memory; give it less at once"
        )
        self.memory_bytes = memory_bytes

    def __reduce__(self) -> tuple[type[OutOfMemory], tuple[int]]:
        return OutOfMemory, (self.memory_bytes,)
