"""Runs the checks, each with a timeout, so that none can block the doctor."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from redis.exceptions import NoPermissionError, RedisError

from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.ops.doctor.finding import Check, CheckSkipped, Finding, Health, fail, warn
from sluice.ops.doctor.machine import Machine

#: Seconds after which a slow check is reported. Shorter than the timeout of a Redis reply, so that
#: an unresponsive Redis is reported.
SLOW_AFTER_S = 1.0

OnSlow = Callable[[Check], None]


def run_checks(
    machine: Machine, checks: Iterable[Check], on_slow: OnSlow = lambda check: None
) -> Iterator[Finding]:
    """Run the checks one after another; `on_slow` is called for each slow one."""
    for check in checks:
        for finding in _run_with_timeout(machine, check, on_slow):
            yield replace(finding, check=check.name)


def _run_with_timeout(machine: Machine, check: Check, on_slow: OnSlow) -> list[Finding]:
    """Run a check in a thread: access to a dead network disk cannot be interrupted."""
    findings: queue.SimpleQueue[list[Finding]] = queue.SimpleQueue()
    thread = threading.Thread(
        target=lambda: findings.put(_run_check(machine, check)), name=check.name, daemon=True
    )
    thread.start()
    slow_after_s = min(SLOW_AFTER_S, check.timeout_s)
    try:
        return findings.get(timeout=slow_after_s)
    except queue.Empty:
        on_slow(check)
    try:
        return findings.get(timeout=max(0.01, check.timeout_s - slow_after_s))
    except queue.Empty:
        cause = "a disk, systemd or Redis does not respond"
        fix = "sudo dmesg | tail -50, and run the doctor again"
        return [warn(f"no answer within {check.timeout_s:.0f} s", cause, fix)]


def _run_check(machine: Machine, check: Check) -> list[Finding]:
    """Run one check; errors become findings."""
    try:
        found = check.run(machine)
        return found if isinstance(found, list) else [found]
    except CheckSkipped as reason:
        return [Finding(Health.SKIPPED, str(reason))]
    except NoPermissionError as error:
        return [Finding(Health.SKIPPED, f"this Redis user lacks a permission: {error}")]
    except TRANSIENT_ERRORS as error:
        return [_redis_lost(machine, error)]
    except RedisError as error:
        cause = "Redis refused a command"
        return [warn(f"Redis error: {error}", cause, "see the other findings about Redis")]
    except Exception as error:  # an error in one check must not hide the others
        cause = "an error in the doctor itself"
        return [warn(f"{type(error).__name__}: {error}", cause, "please report this")]


def _redis_lost(machine: Machine, error: Exception) -> Finding:
    if machine.redis is not None and isinstance(error, RedisError):
        machine.mark_redis_lost(error)
        return fail(
            f"Redis stopped answering: {error}",
            "it was stopped, or hangs",
            machine.remedies.redis_log(machine.redis.target),
        )
    return warn(str(error), "permission denied by the system", "sudo sluice doctor")
