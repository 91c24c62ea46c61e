"""Errors by cause. Each is mapped once to an HTTP problem and once to an exit code."""

from __future__ import annotations

from sluice.common.text import plural

#: sysexits.h EX_CONFIG: a restart does not help, the configuration has to be changed.
EXIT_CONFIG = 78
#: sysexits.h EX_UNAVAILABLE: a required service is not available.
EXIT_UNAVAILABLE = 69


class SluiceError(Exception):
    """Base class of all errors that Sluice raises."""

    exit_code = 1


class SettingsError(SluiceError):
    """A setting is invalid; the message names the variable and the fix."""

    exit_code = EXIT_CONFIG


class NoRedisServer(SluiceError):
    """No usable Redis could be found or started; the message names the fix."""

    exit_code = EXIT_UNAVAILABLE


class UnsuitableRedis(SluiceError):
    """The Redis server lacks something that Sluice needs; the message names the fix."""

    exit_code = EXIT_CONFIG


class StoreUnavailable(SluiceError):
    """Redis did not take the change in time (down, loading, read-only, out of memory)."""

    exit_code = EXIT_UNAVAILABLE


class NotReplicated(StoreUnavailable):
    """The master has the change, but too few replicas confirmed it: a failover may lose it."""


class CorruptKey(SluiceError):
    """A key holds something other than the contract allows; nothing was changed."""


class QueueFull(SluiceError):
    """The backlog has reached its limit."""

    def __init__(self, backlog: int) -> None:
        super().__init__(plural(backlog, "job is", "jobs are") + " waiting or running")
        self.backlog = backlog


class ScheduleFull(SluiceError):
    """The number of scheduled jobs has reached its limit."""

    def __init__(self, waiting: int) -> None:
        super().__init__(plural(waiting, "job waits for its", "jobs wait for their") + " time")
        self.waiting = waiting


class RateLimited(SluiceError):
    """An API key has reached its request rate."""

    def __init__(self, wait_ms: int) -> None:
        super().__init__(f"the next job is due in {wait_ms} ms")
        self.wait_ms = wait_ms


class QuotaExceeded(SluiceError):
    """An API key has reached its limit of unfinished jobs."""

    def __init__(self, active: int) -> None:
        super().__init__(plural(active, "job has", "jobs have") + " not ended")
        self.active = active


class IdempotencyConflict(SluiceError):
    """An Idempotency-Key was used again with a different request."""
