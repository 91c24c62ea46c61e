"""Settings of the worker: an invalid one is named, a valid one takes effect."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluice.common.errors import SettingsError
from sluice.common.jobs.limits import TaskLimit
from sluice.common.jobs.options import Backoff
from sluice.common.settings.base import load_settings
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.execution.outcome import HandlerOptions, WorkerDefaults
from sluice.worker.main import build_capacity, build_identity


def named(limits: Sequence[TaskLimit]) -> dict[str, int]:
    return {limit.name: limit.slots for limit in limits}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WorkerSettings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


LIMITS = [
    ("chat", "'chat' must be tasks and a number from 1, such as chat:1"),
    ("chat:", "'chat:'"),
    ("chat:1.5", "'chat:1.5'"),
    ("chat:1:2", "'chat:1:2'"),
    ("chat=1", "'chat=1' names an unknown task 'chat=1'; tasks are chat, plan"),
    ("chat:1;plan:2", "'chat:1;plan:2'"),
    ("chat:1,dance:2", "'dance:2' names an unknown task"),
    ("chat+plan:1,plan:2", "plan is limited twice"),
    ("Chat:1", "'Chat:1' names an unknown task"),
]
#: uvloop cannot wait for ever, and would raise only during the shutdown.
NUMBERS = {
    "JOB_TIMEOUT_S": ["-1", "nan", "inf"],
    "RETRY_BACKOFF_S": ["-0.1", "nan"],
    "RETRY_BACKOFF_MAX_S": ["inf"],
    "CANCEL_GRACE_S": ["-1", "inf"],
    "MAX_ATTEMPTS": ["0"],
    "SHUTDOWN_GRACE_S": ["nan", "inf"],
    "AUDIT_EVERY_S": ["inf"],
}


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        *((name, *limit) for name in ("TASK_LIMITS", "TASK_LIMITS_GLOBAL") for limit in LIMITS),
        *((name, value, "") for name, values in NUMBERS.items() for value in values),
    ],
)
def test_an_invalid_value_is_named_with_its_variable(
    name: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings(WorkerSettings)
    assert f"{name}={value!r}: " in str(caught.value)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "WORKER_GROUP": "g", "CONSUMER": "c", "LEASE_MS": "5000", "DEFAULT_TTL_S": "7",
        "MAX_ATTEMPTS": "3", "MAX_INFLIGHT": "9", "COUNT": "8", "BLOCK_MS": "70",
        "TASK_LIMITS": "chat:1", "TASK_LIMITS_GLOBAL": "chat:2,plan:3", "JOB_TIMEOUT_S": "1.5",
        "RETRY_BACKOFF_S": "0.5", "RETRY_BACKOFF_MAX_S": "4", "CANCEL_GRACE_S": "0.25",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    settings = load_settings(WorkerSettings)
    assert build_identity(settings) == ("g", "c", 5000, 7, 3)
    room = build_capacity(settings)
    assert (room.max_inflight, room.count, room.block_ms) == (9, 8, 70)
    assert named(room.task_limits) == {"chat": 1}
    assert named(room.task_limits_global) == {"chat": 2, "plan": 3}
    given = WorkerDefaults.from_settings(settings)
    assert (given.max_attempts, given.timeout_s, given.cancel_grace_s) == (3, 1.5, 0.25)
    assert given.backoff == Backoff(0.5, max_s=4)


def test_no_timeout_is_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WorkerDefaults.from_settings(load_settings(WorkerSettings)).timeout_s == 3600
    monkeypatch.setenv("JOB_TIMEOUT_S", "0")
    assert WorkerDefaults.from_settings(load_settings(WorkerSettings)).timeout_s is None


@pytest.mark.parametrize("max_attempts", [0, -1])
def test_a_handler_needs_an_attempt(max_attempts: int) -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        HandlerOptions(max_attempts=max_attempts)


@pytest.mark.parametrize(("lock_ms", "renew_ms"), [("", 15_000), ("1000", 500), ("60001", 30_000)])
def test_locks_of_bullmq_are_renewed_at_half_their_time(
    lock_ms: str, renew_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BULLMQ_LOCK_MS", lock_ms)
    assert load_settings(WorkerSettings).bullmq_renew_every_ms == renew_ms
    monkeypatch.setenv("BULLMQ_LOCK_RENEW_MS", "300")
    assert load_settings(WorkerSettings).bullmq_renew_every_ms == 300


def test_a_bullmq_lock_must_survive_a_failed_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULLMQ_LOCK_MS", "10000")
    monkeypatch.setenv("BULLMQ_LOCK_RENEW_MS", "5001")
    with pytest.raises(SettingsError) as told:
        load_settings(WorkerSettings)
    assert str(told.value) == (
        "BULLMQ_LOCK_RENEW_MS (5001) must be at most half of BULLMQ_LOCK_MS (10000); "
        "set it to 5000 or less, or leave it unset"
    )
