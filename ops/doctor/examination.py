"""Makes every check, each for a limited time, so that nothing can hang the doctor."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from redis.exceptions import NoPermissionError, RedisError

from common.connection import TRANSIENT_ERRORS
from ops.doctor.box import Box
from ops.doctor.finding import Check, Finding, Health, Unable, fail, warn

#: Seconds after which somebody who waits is told what for: before Redis is given up, so that one
#: that does not answer is named.
PATIENCE_S = 1.0

OnSlow = Callable[[Check], None]


def examine(
    box: Box, checks: Iterable[Check], on_slow: OnSlow = lambda check: None
) -> Iterator[Finding]:
    """Make the checks one after the other; `on_slow` hears of one that takes its time."""
    for check in checks:
        for finding in _within_limit(box, check, on_slow):
            yield replace(finding, check=check.name)


def _within_limit(box: Box, check: Check, on_slow: OnSlow) -> list[Finding]:
    """In a thread, because a dead network disk cannot be interrupted, only left behind."""
    answer: queue.SimpleQueue[list[Finding]] = queue.SimpleQueue()
    thread = threading.Thread(
        target=lambda: answer.put(_look(box, check)), name=check.name, daemon=True
    )
    thread.start()
    patience_s = min(PATIENCE_S, check.limit_s)
    try:
        return answer.get(timeout=patience_s)
    except queue.Empty:
        on_slow(check)
    try:
        return answer.get(timeout=max(0.01, check.limit_s - patience_s))
    except queue.Empty:
        cause = "what it asks hangs: a disk, systemd or Redis that does not answer"
        fix = "sudo dmesg | tail -50, and run the doctor again"
        return [warn(f"no answer within {check.limit_s:.0f} s", cause, fix)]


def _look(box: Box, check: Check) -> list[Finding]:
    """Make one check; whatever goes wrong in it is a finding too."""
    try:
        found = check.look(box)
        return found if isinstance(found, list) else [found]
    except Unable as reason:
        return [Finding(Health.SKIPPED, str(reason))]
    except NoPermissionError as error:
        return [Finding(Health.SKIPPED, f"this Redis user may not: {error}")]
    except TRANSIENT_ERRORS as error:
        return [_lost(box, error)]
    except RedisError as error:
        cause = "Redis refuses a command"
        return [warn(f"Redis says: {error}", cause, "see the other findings about Redis")]
    except Exception as error:  # a fault of the check must not hide the others
        cause = "a fault of the doctor itself"
        return [warn(f"{type(error).__name__}: {error}", cause, "please report this")]


def _lost(box: Box, error: Exception) -> Finding:
    """Redis went away meanwhile: no other check waits for it in vain."""
    if box.redis is not None and isinstance(error, RedisError):
        box.redis.trouble = error
        box.__dict__.pop("server", None)
        box.__dict__.pop("local_server", None)
        return fail(
            f"Redis went away: {error}",
            "it was stopped, or stands still",
            box.remedies.redis_log(box.redis.target),
        )
    return warn(str(error), "the system refuses", "sudo sluice doctor")
