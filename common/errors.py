"""Errors by cause. Each is mapped once to an HTTP problem and once to an exit code."""

from __future__ import annotations

from common.text import plural

#: sysexits.h EX_CONFIG: restarting will not help, a person must change the configuration.
EXIT_CONFIG = 78
#: sysexits.h EX_UNAVAILABLE: something we need is not there.
EXIT_UNAVAILABLE = 69


class SluiceError(Exception):
    """Anything Sluice itself raises."""

    exit_code = 1


class SettingsError(SluiceError):
    """A setting is wrong; the message names the variable and the fix."""

    exit_code = EXIT_CONFIG


class NoRedisServer(SluiceError):
    """No usable Redis could be found or started; the message names the fix."""

    exit_code = EXIT_UNAVAILABLE


class UnsuitableRedis(SluiceError):
    """The Redis we were given cannot do what we need; the message names the fix."""

    exit_code = EXIT_CONFIG


class StoreUnavailable(SluiceError):
    """Redis did not take the change in time (down, loading, read-only, out of memory)."""

    exit_code = EXIT_UNAVAILABLE


class NotReplicated(StoreUnavailable):
    """The master has the change, and fewer replicas than were asked for: it may yet be lost."""


class CorruptKey(SluiceError):
    """A key of ours holds something else than the contract says; nothing was changed."""


class QueueFull(SluiceError):
    """The backlog has reached its limit."""

    def __init__(self, backlog: int) -> None:
        super().__init__(plural(backlog, "job is", "jobs are") + " waiting or running")
        self.backlog = backlog


class ScheduleFull(SluiceError):
    """As many jobs wait for their time as may."""

    def __init__(self, waiting: int) -> None:
        super().__init__(plural(waiting, "job waits for its", "jobs wait for their") + " time")
        self.waiting = waiting


class RateLimited(SluiceError):
    """A key has used up what its rate allows for now."""

    def __init__(self, wait_ms: int) -> None:
        super().__init__(f"the next job is due in {wait_ms} ms")
        self.wait_ms = wait_ms


class QuotaExceeded(SluiceError):
    """As many jobs of a key have not ended as may."""

    def __init__(self, active: int) -> None:
        super().__init__(plural(active, "job has", "jobs have") + " not ended")
        self.active = active


class IdempotencyConflict(SluiceError):
    """An Idempotency-Key came again with another request."""
