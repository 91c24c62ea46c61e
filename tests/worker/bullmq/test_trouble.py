"""Redis restarts, or replies are lost: every job ends once, and soon."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis

from common.features.bullmq.scripts import COMPLETE
from tests.support.servers import SYSTEM, Backend, RealServer, require_binary
from tests.support.waiting import eventually
from tests.support.worker.bullmq import TIMEOUT_S, TRIES, Bull, bull_on
from tests.support.worker.handlers import Gate
from worker.bullmq import main
from worker.bullmq.consumer import BullMQConsumer
from worker.execution.context import JobContext


def lose_replies(consumer: BullMQConsumer, script: str, count: int) -> list[str]:
    """Lose the replies to the next `count` calls of a script."""
    client, lost = consumer.reader._client, []
    call = client.call
    scripts = consumer.reader._scripts
    wanted = (scripts._complete if script == COMPLETE else scripts._scripts[script]).sha

    async def losing(script_call: Any) -> Any:
        reply = await call(script_call)
        if script_call.script.sha == wanted and len(lost) < count:
            lost.append(script)
            raise redis.exceptions.ConnectionError("the answer was lost")
        return reply

    client.call = losing  # type: ignore[method-assign]
    return lost


@pytest.mark.real_redis
async def test_a_completion_with_a_lost_reply_is_not_a_failure(bull: Bull) -> None:
    gate = Gate()
    bull.registry.add_named("work", gate)
    consumer = bull.work(bullmq_concurrency=1, bullmq_lock_ms=60_000, bullmq_lock_renew_ms=30_000)
    await bull.ended(await bull.add("work"))
    await bull.queue.pause()
    ids = [await bull.add("work") for _ in range(6)]
    lost = lose_replies(consumer, COMPLETE, 3)
    await bull.queue.resume()
    found = await bull.ended(*ids)
    assert [each["returnvalue"] for each in found] == ["1"] * 6
    assert len(lost) == 3  # each of them had locked the next job
    assert gate.begun[1:] == ids


@pytest.mark.real_redis
async def test_a_job_locked_in_a_lost_reply_is_adopted(bull: Bull) -> None:
    gate = Gate()
    bull.registry.add_named("work", gate)
    consumer = bull.work(bullmq_lock_ms=60_000, bullmq_lock_renew_ms=30_000)
    await bull.ended(await bull.add("work"))
    lost = lose_replies(consumer, main.TAKE, 1)
    job_id = await bull.add("work")
    began = time.monotonic()
    await bull.ended(job_id)
    assert time.monotonic() - began < 12
    assert (lost, gate.begun[1:]) == ([main.TAKE], [job_id])


@pytest.mark.real_redis
async def test_killed_connections_lose_nothing(bull: Bull) -> None:
    gate = Gate(0.005)
    bull.registry.add_named("work", gate)
    bull.work(bullmq_concurrency=5)
    jobs = await bull.queue.addBulk([{"name": "work", "data": {}, "opts": {}} for _ in range(100)])
    ids = [str(job.id) for job in jobs]
    for part in (10, 40, 70):
        await eventually(lambda part=part: len(gate.begun) > part, TIMEOUT_S)  # type: ignore[misc]
        await bull.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await bull.ended(*ids)
    assert sorted(gate.begun) == sorted(ids)


@pytest.mark.slow("restarts a server")
async def test_jobs_continue_within_a_second_after_a_restart_of_redis() -> None:
    runs: list[str] = []
    server = RealServer(require_binary(SYSTEM), durable=True)
    async for bull in bull_on(Backend(SYSTEM, server.url)):

        @bull.registry.named("slow")
        async def slow(context: JobContext, data: Any) -> str:
            runs.append(context.job_id)
            await asyncio.sleep(data["s"])
            return "done"

        bull.work(bullmq_lock_ms=8000, bullmq_lock_renew_ms=4000)
        took_s = []
        for _ in range(TRIES):
            runs.clear()
            during = await bull.add("slow", {"s": 0.5})
            await bull.event(during, "active")
            server.kill()
            await asyncio.sleep(1.0)  # it ends while Redis is down
            server.restart()
            began = time.monotonic()
            [found] = await bull.ended(during)
            assert found["returnvalue"] == '"done"'
            took_s.append(time.monotonic() - began)
            after = await bull.add("slow", {"s": 0.0})
            await bull.ended(after)
            assert runs == [during, after]
            if took_s[-1] < 3:
                break
        assert min(took_s) < 3
    server.close()
