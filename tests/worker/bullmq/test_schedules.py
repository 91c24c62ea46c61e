"""Schedulers: every job adds the next one, whether it succeeds or not."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest

from common.contracts.bullmq import BullKeys
from common.settings.worker import WorkerSettings
from tests.support.waiting import eventually
from tests.support.worker.bullmq import TIMEOUT_S, Bull
from worker.bullmq.job import LockedJob
from worker.bullmq.schedules import ScheduleWriter
from worker.bullmq.script_client import ScriptClient
from worker.bullmq.scripts import QueueScripts
from worker.errors import JobError
from worker.execution.context import JobContext


@pytest.mark.real_redis
async def test_an_interval_repeats(bull: Bull) -> None:
    due: list[int] = []
    late_s: list[float] = []

    @bull.registry.named("tick")
    async def tick(context: JobContext, data: Any) -> None:
        due.append(int(context.job_id.rpartition(":")[2]))
        late_s.append(time.time() - due[-1] / 1000)
        if len(due) == 2:
            raise JobError("one bad iteration")

    bull.work()
    await bull.queue.upsertJobScheduler("s", {"every": 200}, "tick", {"a": 1})
    await eventually(lambda: len(due) >= 5, TIMEOUT_S)
    gaps = [later - sooner for sooner, later in itertools.pairwise(due)]
    # A stalled machine misses some ticks; later ones keep their times.
    assert all(gap > 0 and gap % 200 == 0 for gap in gaps), gaps
    assert 200 in gaps
    assert -0.002 <= min(late_s) < 0.15, late_s
    assert await bull.redis.zcard(bull.keys.key("repeat")) == 1


@pytest.mark.real_redis
async def test_a_limit_ends_it(bull: Bull) -> None:
    ran: list[str] = []

    @bull.registry.named("tick")
    async def tick(context: JobContext, data: Any) -> None:
        ran.append(context.job_id)

    consumer = bull.work()
    await bull.queue.upsertJobScheduler("s", {"every": 100, "limit": 3}, "tick")
    await eventually(lambda: len(ran) == 3, TIMEOUT_S)
    await consumer.slots.wait_idle(5)
    await consumer.schedules.flush()
    assert await bull.redis.zcard(bull.keys.key("delayed")) == 0
    assert len(set(ran)) == 3


@pytest.mark.real_redis
async def test_a_cron_expression_names_the_next_time(bull: Bull) -> None:
    consumer = bull.work()
    bull.registry.add_named("tick", _nothing)
    first = await bull.queue.upsertJobScheduler(
        "s", {"pattern": "*/1 * * * * *"}, "tick", {"a": 1}, {"priority": 4}
    )
    await bull.ended(str(first.id))
    await consumer.schedules.flush()
    [following] = [
        job_id
        for job_id in await bull.redis.zrange(bull.keys.key("delayed"), 0, -1)
        if job_id != first.id
    ] or [str((await bull.redis.zrange(bull.keys.key("completed"), 0, -1))[-1])]
    found = await bull.hash(following)
    opts = json.loads(found["opts"])
    assert (found["rjk"], found["priority"], found["data"]) == ("s", "4", '{"a":1}')
    assert opts["repeat"]["count"] == 2
    assert opts["prevMillis"] % 1000 == 0


def test_an_ended_scheduler_has_no_next_job() -> None:
    schedules = ScheduleWriter(ScriptClient(None), _scripts(), 1000)  # type: ignore[arg-type]
    for repeat in ({"every": 5, "limit": 2, "count": 2}, {"every": 5, "endDate": 1000}, {}):
        opts = json.dumps({"repeat": repeat}).encode()
        job = LockedJob.from_hash([b"opts", opts, b"rjk", b"s"], "repeat:s:1", "t")
        assert schedules.call(job) is None


def _scripts() -> QueueScripts:
    return QueueScripts(BullKeys("q"), WorkerSettings())


async def _nothing(context: JobContext, data: Any) -> None: ...
