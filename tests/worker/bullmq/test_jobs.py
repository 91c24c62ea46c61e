"""Jobs through the executor, as Node.js sees them: hash, events, log, flows and schedules."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import bullmq
import pytest
from pydantic import BaseModel

from sluice.common.contracts.bullmq import BullKeys
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.bullmq.job import LockedJob
from sluice.worker.bullmq.schedules import ScheduleWriter
from sluice.worker.bullmq.script_client import ScriptClient
from sluice.worker.bullmq.scripts import QueueScripts
from sluice.worker.errors import JobError, NotNow, TransientError
from sluice.worker.execution.context import JobContext
from tests.support.waiting import eventually
from tests.support.worker.bullmq import TIMEOUT_S, TRIES, Bull
from tests.support.worker.handlers import Gate

pytestmark = pytest.mark.real_redis


async def echo(context: JobContext, data: Any) -> Any:
    return data


async def test_a_job_completes(bull: Bull) -> None:
    async def double(context: JobContext, data: Any) -> Any:
        return {"is": data["n"] * 2, "id": context.job_id, "attempt": context.attempt}

    bull.work(bullmq_worker_name="me")
    found = await bull.run(double, {"n": 21})
    job_id = found["id"]
    assert json.loads(found["returnvalue"]) == {"is": 42, "id": job_id, "attempt": 1}
    assert (found["ats"], found["atm"], found["pb"]) == ("1", "1", "me")
    assert "attemptsMade" not in found
    assert await bull.state(job_id) == "completed"
    assert not await bull.redis.exists(bull.keys.lock(job_id))
    assert await bull.event_types(job_id) == ["added", "waiting", "active", "completed"]


async def test_the_handler_gets_the_tenant_and_the_tools_of_the_job(bull: Bull) -> None:
    async def who(context: JobContext, data: Any) -> Any:
        return [context.tenant, None if context.tools is None else sorted(context.tools)]

    rights = {"tenant": "shop", "tools": ["calculator"]}
    for opts, expected in (
        ({"sluice": rights}, ["shop", ["calculator"]]),
        ({"jobId": "0b51e4a8-6f0e-4b4c-9d5e-3413caa70e29"}, ["?", []]),
        ({}, ["", None]),
    ):
        assert json.loads((await bull.run(who, **opts))["returnvalue"]) == expected


async def test_any_json_value_is_accepted_and_returned(bull: Bull) -> None:
    for data in ([1, 2], "text", 7, {"ü": "💡 \u2028"}, {"long": "x" * 200_000}):
        assert json.loads((await bull.run(echo, data))["returnvalue"]) == data
    nothing = await bull.run(lambda context, data: None)
    assert nothing["returnvalue"] == "null"
    assert (await bull.run(typed, {"n": 1}, name="typed"))["returnvalue"] == "1"


async def test_unpaired_surrogates_are_kept(bull: Bull) -> None:
    """Node's JSON.stringify writes them as escapes."""
    data = {"a": "\ud800", "\udc00": "ü😀"}
    got: list[Any] = []

    async def keep(context: JobContext, given: Any) -> Any:
        got.append(given)
        return given

    found = await bull.run(keep, data, attempts=1)
    assert found["data"].isascii()
    assert got == [data]
    assert json.loads(found["returnvalue"]) == data


async def test_a_traceback_with_a_surrogate_is_stored(
    bull: Bull, caplog: pytest.LogCaptureFixture
) -> None:
    # Captured log lines are part of the report, which xdist sends to another process as UTF-8.
    caplog.set_level(logging.CRITICAL, logger="sluice.worker")

    async def fail(context: JobContext, data: Any) -> None:
        raise ValueError(data)

    found = await bull.run(fail, "a\ud800b")
    assert found["failedReason"] == "a?b"
    assert "a\ud800b" in json.loads(found["stacktrace"])[0]


async def test_names_are_mapped_and_tasks_count_as_names(bull: Bull) -> None:
    bull.registry.add_named("plain", echo)
    bull.registry.add("embed", echo)
    bull.work(bullmq_name_map="video=plain,other=embed")
    for name in ("video", "other", "embed", "plain"):
        assert (await bull.run(data=name, name=name))["returnvalue"] == f'"{name}"'


class Payload(BaseModel):
    n: int


async def typed(context: JobContext, data: Payload) -> int:
    return data.n


async def never(context: JobContext, data: Any) -> None:
    raise JobError("not ever")


@pytest.mark.parametrize(
    ("handler", "data", "reason"),
    [
        (None, {}, "no handler for job name 'work'"),
        (never, {}, "not ever"),
        (typed, [1], "dict"),
        (lambda context, data: object(), {}, "not valid JSON"),
        (lambda context, data: "x" * 2000, {}, "2002 bytes"),
    ],
    ids=["unknown", "job-error", "payload", "odd-result", "long-result"],
)
async def test_permanent_errors_end_a_job_with_attempts_left(
    bull: Bull, handler: Any, data: Any, reason: str
) -> None:
    consumer = bull.work(bullmq_result_max_bytes=1024)
    found = await bull.run(handler, data, attempts=5, backoff=10)
    assert reason in found["failedReason"].replace("Dict", "dict")
    assert found["atm"] == "1"
    assert "returnvalue" not in found
    assert consumer.counters.for_task("work").failed == 1


async def test_failures_are_retried_with_the_backoff_of_the_job(bull: Bull) -> None:
    began: list[float] = []

    async def flaky(context: JobContext, data: Any) -> int:
        began.append(asyncio.get_running_loop().time())
        if context.attempt < 3:
            raise RuntimeError(f"no. {context.attempt}")
        return context.attempt

    firsts, seconds = [], []
    for _ in range(TRIES):
        began.clear()
        found = await bull.run(flaky, attempts=3, backoff={"type": "exponential", "delay": 150})
        assert (found["returnvalue"], found["atm"], found["ats"]) == ("3", "3", "3")
        events = [each for each in await bull.events() if each.get("jobId") == found["id"]]
        events = [each for each in events if each["event"] in ("delayed", "retry")]
        assert [each["event"] for each in events] == ["delayed", "retry"] * 2
        assert [each["delay"] for each in events if each["event"] == "retry"] == ["150", "300"]
        assert len(json.loads(found["stacktrace"])) == 2
        assert "RuntimeError: no. 1" in json.loads(found["stacktrace"])[0]
        firsts.append(began[1] - began[0])
        seconds.append(began[2] - began[1])
        if min(firsts) < 0.25 and min(seconds) < 0.4:
            break
    assert 0.145 < min(firsts) < 0.25
    assert 0.295 < min(seconds) < 0.4


async def test_without_a_backoff_a_job_is_retried_at_once(bull: Bull) -> None:
    async def fails(context: JobContext, data: Any) -> None:
        raise TransientError("again")

    bull.work(bullmq_retry_event=False)
    found = await bull.run(fails, attempts=2, stackTraceLimit=1)
    assert (found["atm"], found["failedReason"]) == ("2", "again")
    assert len(json.loads(found["stacktrace"])) == 1
    assert await bull.event_types(found["id"]) == [
        *("added", "waiting", "active", "waiting", "active", "failed", "retries-exhausted")
    ]


async def test_retry_after_is_respected(bull: Bull) -> None:
    async def busy(context: JobContext, data: Any) -> str:
        if context.attempt == 1:
            raise TransientError("429", retry_after_s=0.2)
        return "done"

    found = await bull.run(busy, attempts=2, backoff=60_000)
    assert found["returnvalue"] == '"done"'
    assert (await bull.event(found["id"], "retry"))["delay"] == "200"


async def test_a_postponed_job_uses_no_attempt(bull: Bull) -> None:
    tries: list[int] = []

    async def later(context: JobContext, data: Any) -> str:
        tries.append(context.attempt)
        if len(tries) < 3:
            raise NotNow("later", retry_after_s=0.1)
        return "done"

    found = await bull.run(later)
    assert (found["returnvalue"], found["atm"], tries) == ('"done"', "1", [1, 1, 1])


async def test_progress_and_events_of_a_handler(bull: Bull) -> None:
    """Progress has a percentage and a message; other events go to the log."""

    async def video(context: JobContext, data: Any) -> None:
        for percent in (-1, 101, 0.5, True, "50"):
            with pytest.raises((TypeError, ValueError), match="progress must be"):
                await context.progress(percent)  # type: ignore[arg-type]
        for percent in (25, 50, 75, 100):
            await context.progress(percent, f"part {percent // 25}")
        await context.progress(10)
        await context.emit("note", {"n": 1})

    found = await bull.run(video, keepLogs=4)
    sent = [event["data"] for event in await bull.events() if event["event"] == "progress"]
    assert sent == ["25", "50", "75", "100", "100"]
    assert found["progress"] == "100"
    lines = await bull.redis.lrange(bull.keys.logs(found["id"]), 0, -1)
    assert lines == ["part 2", "part 3", "part 4", 'note {"n":1}']
    assert (await bull.event_types(found["id"]))[-1] == "completed"


async def test_steps_are_saved_for_the_next_attempt(bull: Bull) -> None:
    """Sync handlers, which run in threads, can save and report progress, too."""

    async def steps(context: JobContext, data: Any) -> Any:
        if context.attempt == 1:
            await context.save("first", [1])
            raise TransientError("again")
        return await context.saved()

    def plain(context: Any, data: Any) -> Any:
        context.progress(50)
        context.save("step", {"n": 1})
        return context.saved()

    found = await bull.run(steps, attempts=2)
    assert json.loads(found["returnvalue"]) == {"first": [1]}
    assert not await bull.redis.exists(bull.keys.steps(found["id"]))
    found = await bull.run(plain)
    assert (json.loads(found["returnvalue"]), found["progress"]) == ({"step": {"n": 1}}, "50")


async def test_a_handler_that_cancels_itself_ends_only_its_job(bull: Bull) -> None:
    release = asyncio.Event()

    async def cancels(context: JobContext, data: Any) -> None:
        raise asyncio.CancelledError

    @bull.registry.named("waits")
    async def waits(context: JobContext, data: Any) -> str:
        await release.wait()
        return "well"

    waiting = await bull.add("waits")
    failed = await bull.run(cancels, attempts=1)
    assert "canceled itself" in failed["failedReason"]
    release.set()
    found, after = await bull.ended(waiting, await bull.add("waits"))
    assert found["returnvalue"] == after["returnvalue"] == '"well"'


async def test_retention_of_ended_jobs(bull: Bull) -> None:
    bull.registry.add_named("ok", echo)
    bull.registry.add_named("never", never)
    bull.work(bullmq_concurrency=1, bullmq_remove_on_complete=2)
    gone = await bull.add("ok", removeOnComplete=True)
    for _ in range(4):
        last = await bull.add("ok", removeOnComplete={"count": 3})
    await bull.event(last, "completed")
    assert await bull.hash(gone) == {}
    assert await bull.redis.zcard(bull.keys.key("completed")) == 3
    await bull.event(await bull.add("ok"), "completed")  # no option: the worker's setting applies
    assert await bull.redis.zcard(bull.keys.key("completed")) == 2
    failed = await bull.add("never", removeOnFail=True)
    await bull.event(failed, "failed")
    assert await bull.hash(failed) == {}


async def test_deduplication_ends_with_its_job(bull: Bull) -> None:
    gate = Gate(closed=True, held={"once"})
    bull.registry.add_named("once", gate)
    bull.work()
    first = await bull.add("once", deduplication={"id": "d"})
    await bull.event(first, "active")
    assert await bull.add("once", deduplication={"id": "d"}) == first
    gate.open.set()
    await bull.ended(first)
    second = await bull.add("once", deduplication={"id": "d"})
    assert second != first
    await bull.ended(second)


# -- flows: children run before their parent, and may fail it ----------------------------------


@pytest.fixture
async def flow(bull: Bull) -> AsyncIterator[Any]:
    producer = bullmq.FlowProducer({"connection": bull.url})

    async def add(*children: dict[str, Any], **opts: Any) -> str:
        node = await producer.add(
            {
                "name": "parent",
                "queueName": bull.keys.queue,
                "data": {},
                "opts": opts,
                "children": [{"queueName": bull.keys.queue, **child} for child in children],
            }
        )
        return str(node["job"].id)

    yield add
    await producer.close()


def register(bull: Bull, order: list[str]) -> None:
    @bull.registry.named("parent")
    async def parent(context: JobContext, data: Any) -> Any:
        order.append("parent")
        return sorted((await context.children()).values())

    @bull.registry.named("child")
    async def child(context: JobContext, data: Any) -> Any:
        order.append("child")
        if data.get("fail"):
            raise JobError("the child failed")
        return data["n"]


async def test_children_run_first_and_the_parent_has_their_results(bull: Bull, flow: Any) -> None:
    order: list[str] = []
    register(bull, order)
    bull.work()
    parent = await flow(*({"name": "child", "data": {"n": n}} for n in (1, 2, 3)))
    [found] = await bull.ended(parent)
    assert json.loads(found["returnvalue"]) == [1, 2, 3]
    assert order == ["child", "child", "child", "parent"]


@pytest.mark.parametrize("option", ["failParentOnFailure", "ignoreDependencyOnFailure"])
async def test_a_failed_child_fails_its_parent_or_is_ignored(
    bull: Bull, flow: Any, option: str
) -> None:
    order: list[str] = []
    register(bull, order)
    bull.work()
    failing = {"name": "child", "data": {"fail": True}, "opts": {option: True}}
    parent = await flow(failing, {"name": "child", "data": {"n": 1}})
    [found] = await bull.ended(parent)
    if option == "failParentOnFailure":
        assert "failed" in found["failedReason"]
        assert "parent" not in order
        assert await bull.state(parent) == "failed"
    else:
        assert json.loads(found["returnvalue"]) == [1]


async def test_a_job_with_children_that_have_not_ended_cannot_complete(
    bull: Bull, flow: Any
) -> None:
    @bull.registry.named("parent")
    async def parent(context: JobContext, data: Any) -> str:
        await bull.redis.sadd(f"{bull.keys.job(context.job_id)}:dependencies", "some:child")
        return "done"

    consumer = bull.work()
    [found] = await bull.ended(await bull.add("parent", attempts=3))
    assert "children that have not ended" in found["failedReason"]
    assert consumer.counters.for_task("parent").failed == 1


# -- schedulers: every job adds the next one, whether it succeeds or not -----------------------


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
