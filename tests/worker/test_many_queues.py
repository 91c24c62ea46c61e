"""A worker of many queues makes room for their connections, or says that there is none."""

from __future__ import annotations

import pytest

from common.settings import WorkerSettings
from worker import crews
from worker.main import capacity, identity, terms
from worker.registry import Registry


@pytest.mark.parametrize(("allowed", "told"), [(100_000, False), (1024, True)])
async def test_room_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    allowed: int,
    told: bool,
) -> None:
    wanted: list[int] = []

    def allow_files(count: int) -> int:
        wanted.append(count)
        return allowed

    monkeypatch.setattr(crews, "allow_files", allow_files)
    settings = WorkerSettings(redis_url="redis://127.0.0.1:1", queue_partitions=256)
    crews.hire(
        *(settings, str(settings.redis_url), Registry()),
        *(identity(settings), capacity(settings), terms(settings)),
    )
    assert wanted[0] >= 256 * 5
    assert ("may open 1024 files only, and 256 queues" in caplog.text) is told
