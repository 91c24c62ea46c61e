"""One job through the executor, as Node.js sees it: hash, events, progress and log."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.worker.bullmq.kit import TRIES, Bull
from worker.errors import JobError, NotNow, TransientError
from worker.execution.context import JobContext


async def test_a_job_completes(bull: Bull) -> None:
    @bull.registry.named("double")
    async def double(context: JobContext, data: Any) -> Any:
        return {"is": data["n"] * 2, "id": context.job_id, "attempt": context.attempt}

    bull.work(bullmq_worker_name="me")
    job_id = await bull.add("double", {"n": 21})
    [found] = await bull.ended(job_id)
    assert json.loads(found["returnvalue"]) == {"is": 42, "id": job_id, "attempt": 1}
    assert (found["ats"], found["atm"], found["pb"]) == ("1", "1", "me")
    assert "attemptsMade" not in found
    assert await bull.state(job_id) == "completed"
    assert not await bull.redis.exists(bull.keys.lock(job_id))
    assert await bull.event_types(job_id) == ["added", "waiting", "active", "completed"]


@pytest.mark.parametrize("data", [[1, 2], "text", 7, {"ü": "💡 \u2028"}, {"long": "x" * 200_000}])
async def test_any_json_value_is_accepted_and_returned(bull: Bull, data: Any) -> None:
    bull.registry.add_named("echo", _echo)
    bull.work()
    [found] = await bull.ended(await bull.add("echo", data))
    assert json.loads(found["returnvalue"]) == data


async def test_nothing_returned_is_null(bull: Bull) -> None:
    @bull.registry.named("nothing")
    async def nothing(context: JobContext, data: Any) -> None: ...

    bull.work()
    [found] = await bull.ended(await bull.add("nothing"))
    assert found["returnvalue"] == "null"


async def test_an_unknown_name_fails_at_once(bull: Bull) -> None:
    bull.work()
    [found] = await bull.ended(await bull.add("x", attempts=5))
    assert found["failedReason"] == "no handler for job name 'x'"
    assert found["atm"] == "1"


async def test_names_are_mapped_and_tasks_count_as_names(bull: Bull) -> None:
    bull.registry.add_named("plain", _echo)
    bull.registry.add("embed", _echo)
    bull.work(bullmq_name_map="video=plain,other=embed")
    ids = [await bull.add(name, {"n": name}) for name in ("video", "other", "embed", "plain")]
    assert [json.loads(each["returnvalue"])["n"] for each in await bull.ended(*ids)] == [
        "video", "other", "embed", "plain",
    ]  # fmt: skip


class Payload(BaseModel):
    n: int


async def test_a_payload_model_is_validated(bull: Bull) -> None:
    @bull.registry.named("typed")
    async def typed(context: JobContext, data: Payload) -> int:
        return data.n

    bull.work()
    good, bad = await bull.add("typed", {"n": 1}), await bull.add("typed", [1], attempts=3)
    found, refused = await bull.ended(good, bad)
    assert found["returnvalue"] == "1"
    assert refused["atm"] == "1"
    assert "dict" in refused["failedReason"].lower()


async def test_failures_are_retried_with_the_backoff_of_the_job(bull: Bull) -> None:
    began: list[float] = []

    @bull.registry.named("flaky")
    async def flaky(context: JobContext, data: Any) -> int:
        began.append(asyncio.get_running_loop().time())
        if context.attempt < 3:
            raise RuntimeError(f"no. {context.attempt}")
        return context.attempt

    bull.work()
    firsts, seconds = [], []
    for _ in range(TRIES):
        began.clear()
        job_id = await bull.add("flaky", attempts=3, backoff={"type": "exponential", "delay": 150})
        [found] = await bull.ended(job_id)
        assert (found["returnvalue"], found["atm"], found["ats"]) == ("3", "3", "3")
        story = [event for event in await bull.events() if event.get("jobId") == job_id]
        assert [each["event"] for each in story if each["event"] in ("delayed", "retry")] == [
            "delayed", "retry", "delayed", "retry",
        ]  # fmt: skip
        retries = [each["delay"] for each in story if each["event"] == "retry"]
        assert retries == ["150", "300"]
        assert len(json.loads(found["stacktrace"])) == 2
        assert "RuntimeError: no. 1" in json.loads(found["stacktrace"])[0]
        firsts.append(began[1] - began[0])
        seconds.append(began[2] - began[1])
        if min(firsts) < 0.25 and min(seconds) < 0.4:
            break
    assert 0.145 < min(firsts) < 0.25
    assert 0.295 < min(seconds) < 0.4


async def test_without_a_backoff_a_job_is_retried_at_once(bull: Bull) -> None:
    @bull.registry.named("fails")
    async def fails(context: JobContext, data: Any) -> None:
        raise TransientError("again")

    bull.work(bullmq_retry_event=False)
    job_id = await bull.add("fails", attempts=2, stackTraceLimit=1)
    [found] = await bull.ended(job_id)
    assert (found["atm"], found["failedReason"]) == ("2", "again")
    assert len(json.loads(found["stacktrace"])) == 1
    assert await bull.event_types(job_id) == [
        "added", "waiting", "active", "waiting", "active", "failed", "retries-exhausted",
    ]  # fmt: skip


async def test_permanent_errors_end_a_job_with_attempts_left(bull: Bull) -> None:
    @bull.registry.named("never")
    async def never(context: JobContext, data: Any) -> None:
        raise JobError("not ever")

    bull.work()
    [found] = await bull.ended(await bull.add("never", attempts=5, backoff=10))
    assert (found["atm"], found["failedReason"]) == ("1", "not ever")


async def test_retry_after_is_respected(bull: Bull) -> None:
    @bull.registry.named("busy")
    async def busy(context: JobContext, data: Any) -> str:
        if context.attempt == 1:
            raise TransientError("429", retry_after_s=0.2)
        return "done"

    bull.work()
    job_id = await bull.add("busy", attempts=2, backoff=60_000)
    [found] = await bull.ended(job_id)
    assert found["returnvalue"] == '"done"'
    assert (await bull.event(job_id, "retry"))["delay"] == "200"


async def test_a_postponed_job_uses_no_attempt(bull: Bull) -> None:
    tries: list[int] = []

    @bull.registry.named("later")
    async def later(context: JobContext, data: Any) -> str:
        tries.append(context.attempt)
        if len(tries) < 3:
            raise NotNow("later", retry_after_s=0.1)
        return "done"

    bull.work()
    [found] = await bull.ended(await bull.add("later"))
    assert found["returnvalue"] == '"done"'
    assert tries == [1, 1, 1]
    assert found["atm"] == "1"


async def test_progress_has_a_percentage_and_a_message(bull: Bull) -> None:
    @bull.registry.named("video-generation")
    async def video(context: JobContext, data: Any) -> None:
        for percent in (25, 50, 75, 100):
            await context.progress(percent, f"scene {percent // 25}")
        await context.progress(10)

    bull.work()
    job_id = await bull.add("video-generation")
    [found] = await bull.ended(job_id)
    told = [event["data"] for event in await bull.events() if event["event"] == "progress"]
    assert told == ["25", "50", "75", "100", "100"]
    assert found["progress"] == "100"
    lines = await bull.redis.lrange(bull.keys.logs(job_id), 0, -1)
    assert lines == ["scene 1", "scene 2", "scene 3", "scene 4"]
    assert (await bull.event_types(job_id))[-1] == "completed"


@pytest.mark.parametrize("percent", [-1, 101, 0.5, True, "50"])
async def test_progress_out_of_bounds_is_refused(bull: Bull, percent: Any) -> None:
    @bull.registry.named("wrong")
    async def wrong(context: JobContext, data: Any) -> None:
        await context.progress(percent)

    bull.work()
    [found] = await bull.ended(await bull.add("wrong"))
    assert "progress must be" in found["failedReason"]


async def test_other_events_go_to_the_log(bull: Bull) -> None:
    @bull.registry.named("talks")
    async def talks(context: JobContext, data: Any) -> None:
        for number in range(3):
            await context.emit("note", {"n": number})

    bull.work()
    job_id = await bull.add("talks", keepLogs=2)
    await bull.ended(job_id)
    lines = await bull.redis.lrange(bull.keys.logs(job_id), 0, -1)
    assert lines == ['note {"n":1}', 'note {"n":2}']


async def test_sync_handlers_run_in_threads(bull: Bull) -> None:
    @bull.registry.named("plain")
    def plain(context: Any, data: Any) -> Any:
        context.progress(50)
        context.save("step", {"n": 1})
        return context.saved()

    bull.work()
    job_id = await bull.add("plain")
    [found] = await bull.ended(job_id)
    assert json.loads(found["returnvalue"]) == {"step": {"n": 1}}
    assert found["progress"] == "50"


async def test_saved_steps_are_available_to_the_next_attempt(bull: Bull) -> None:
    @bull.registry.named("steps")
    async def steps(context: JobContext, data: Any) -> Any:
        if context.attempt == 1:
            await context.save("first", [1])
            raise TransientError("again")
        return await context.saved()

    bull.work()
    job_id = await bull.add("steps", attempts=2)
    [found] = await bull.ended(job_id)
    assert json.loads(found["returnvalue"]) == {"first": [1]}
    assert not await bull.redis.exists(bull.keys.steps(job_id))


async def test_a_handler_that_cancels_itself_ends_only_its_job(bull: Bull) -> None:
    release = asyncio.Event()

    @bull.registry.named("cancels")
    async def cancels(context: JobContext, data: Any) -> None:
        raise asyncio.CancelledError

    @bull.registry.named("waits")
    async def waits(context: JobContext, data: Any) -> str:
        await release.wait()
        return "well"

    bull.work()
    waiting = await bull.add("waits")
    [failed] = await bull.ended(await bull.add("cancels", attempts=1))
    assert "canceled itself" in failed["failedReason"]
    release.set()
    found, after = await bull.ended(waiting, await bull.add("waits"))
    assert found["returnvalue"] == after["returnvalue"] == '"well"'


@pytest.mark.parametrize(
    ("value", "reason"),
    [(object(), "not valid JSON"), ("x" * 2000, "2002 bytes")],
    ids=("odd", "long"),
)
async def test_results_that_cannot_be_stored_fail_permanently(
    bull: Bull, value: Any, reason: str
) -> None:
    @bull.registry.named("odd")
    async def odd(context: JobContext, data: Any) -> Any:
        return value

    consumer = bull.work(bullmq_result_max_bytes=1024)
    [found] = await bull.ended(await bull.add("odd", attempts=3))
    assert reason in found["failedReason"]
    assert found["atm"] == "1"
    assert "returnvalue" not in found
    assert consumer.counters.for_task("odd").failed == 1


async def test_retention_of_ended_jobs(bull: Bull) -> None:
    @bull.registry.named("echo")
    async def echo(context: JobContext, data: Any) -> Any:
        if data.get("fail"):
            raise JobError("no")

    bull.work(bullmq_concurrency=1, bullmq_remove_on_complete=2)
    gone = await bull.add("echo", removeOnComplete=True)
    for _ in range(4):
        last = await bull.add("echo", removeOnComplete={"count": 3})
    await bull.event(last, "completed")
    assert await bull.hash(gone) == {}
    assert await bull.redis.zcard(bull.keys.key("completed")) == 3
    await bull.event(await bull.add("echo"), "completed")  # no option: the worker's setting applies
    assert await bull.redis.zcard(bull.keys.key("completed")) == 2
    failed = await bull.add("echo", {"fail": True}, removeOnFail=True)
    await bull.event(failed, "failed")
    assert await bull.hash(failed) == {}


async def test_deduplication_ends_with_its_job(bull: Bull) -> None:
    release = asyncio.Event()

    @bull.registry.named("once")
    async def once(context: JobContext, data: Any) -> None:
        await release.wait()

    bull.work()
    first = await bull.add("once", deduplication={"id": "d"})
    await bull.event(first, "active")
    assert await bull.add("once", deduplication={"id": "d"}) == first
    release.set()
    await bull.ended(first)
    second = await bull.add("once", deduplication={"id": "d"})
    assert second != first
    await bull.ended(second)


async def _echo(context: JobContext, data: Any) -> Any:
    return data
