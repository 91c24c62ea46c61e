"""A worker of many queues raises its file limit for their connections, or logs a warning."""

from __future__ import annotations

import pytest

from common.settings.worker import WorkerSettings
from worker.execution.outcome import WorkerDefaults
from worker.main import build_capacity, build_identity
from worker.queue import connections, consumers
from worker.registry import Registry


@pytest.mark.parametrize(("allowed", "warned"), [(100_000, False), (1024, True)])
async def test_the_file_limit_is_raised_for_all_queues(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    allowed: int,
    warned: bool,
) -> None:
    wanted: list[int] = []

    def allow_files(count: int) -> int:
        wanted.append(count)
        return allowed

    monkeypatch.setattr(connections, "raise_file_limit", allow_files)
    settings = WorkerSettings(redis_url="redis://127.0.0.1:1", queue_partitions=256)
    consumers.build_consumers(
        *(settings, str(settings.redis_url), Registry()),
        build_identity(settings),
        build_capacity(settings),
        WorkerDefaults.from_settings(settings),
    )
    assert wanted[0] >= 256 * 5
    assert ("may open only 1024 files, but 256 queues" in caplog.text) is warned
