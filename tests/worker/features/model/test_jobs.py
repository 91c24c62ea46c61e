"""Model jobs on a real worker, with failing servers, and the model in its heartbeat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.common.aio import cancel
from sluice.common.contracts.jobs import EventType
from sluice.common.contracts.workers import ModelState
from sluice.common.jobs.queue_stats import QueueReading
from sluice.common.observability.heartbeats import Heartbeat
from sluice.common.process.usage import LoopLag
from sluice.worker.execution.context import JobContext
from sluice.worker.features.model.availability import TRIAL_EVERY_S
from sluice.worker.features.model.circuit import FAILURE_THRESHOLD
from sluice.worker.features.model.client import ModelClient
from sluice.worker.features.model.types import ChatRequest
from sluice.worker.monitoring.heartbeat import HeartbeatSender
from tests.support.model.answers import Answer, Cut, error_answer, text_answer, tokens
from tests.support.model.server import ModelServer
from tests.support.waiting import eventually
from tests.support.worker.harness import MakeWorker, WorkerHarness, registry_of
from tests.support.worker.model import FakeJob, RecordingSink, settings_for
from tests.support.worker.timing import at_best_within
from tests.support.worker.tools import events


class EventSink(RecordingSink):
    """A sink that emits an event for every piece of text."""

    def __init__(self, context: JobContext) -> None:
        super().__init__()
        self._context = context

    async def text(self, delta: str) -> None:
        await self._context.emit(EventType.MESSAGE, {"delta": delta})


class ModelWorker:
    """A worker whose only handler asks the model."""

    def __init__(self, make: MakeWorker, settings: Any, tasks: Any, terms: Any) -> None:
        self.model = ModelClient(settings)
        self.worker: WorkerHarness = make(registry=registry_of(self._handle, *tasks, **terms))
        self._watching: asyncio.Future[Any] | None = None

    async def _handle(self, context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
        messages = [{"role": "user", "content": payload.get("text", "hi")}]
        answer = await self.model.complete(context, ChatRequest(messages), EventSink(context))
        return {"text": answer.text, "finish_reason": answer.finish_reason}

    async def start(self) -> None:
        await self.model.start(self.worker.services)
        self._watching = asyncio.ensure_future(self.model.run())
        self.worker.start()

    async def close(self) -> None:
        await self.worker.stop(0.1)
        assert self._watching is not None
        await cancel(self._watching)
        await self.model.close()

    async def post(self, **changes: Any) -> str:
        [job_id] = await self.worker.post(**changes)
        return job_id

    async def fail(self, server: ModelServer, answer: Answer) -> tuple[str, dict[str, Any]]:
        """Run a job that fails because of this answer; returns its id and its error."""
        server.set_default(answer)
        job_id = await self.worker.run_job(b"error")
        return job_id, await self.worker.error(job_id)

    async def retries(self, job_id: str) -> list[str]:
        """The reasons why the job was tried again."""
        return [data["kind"] for data in await events(self.worker, job_id, "retry")]

    async def deltas(self, job_id: str) -> list[str]:
        return [data["delta"] for data in await events(self.worker, job_id, "message")]

    async def nothing_is_stuck(self, server: ModelServer) -> None:
        """No message is pending, no request open, no slot taken, and another job runs."""
        await self.worker.all_acked()
        await eventually(lambda: server.active == 0)
        await eventually(lambda: self.model.reading().busy == 0)
        server.set_default(None)
        await self.worker.run_job(payload=b'{"text":"count to 2"}')


Open = Callable[..., Awaitable[ModelWorker]]


@pytest.fixture
async def start(
    make_worker: MakeWorker, server: ModelServer, tmp_path: Path
) -> AsyncIterator[Open]:
    """Starts workers of that model server, or of none, and stops them."""
    started: list[ModelWorker] = []

    async def make(*tasks: str, model: ModelServer | None = server, **terms: Any) -> ModelWorker:
        started.append(ModelWorker(make_worker, settings_for(model, tmp_path), tasks, terms))
        await started[-1].start()
        return started[-1]

    yield make
    for each in started:
        await each.close()


async def test_an_answer(start: Open, server: ModelServer) -> None:
    jobs = await start()
    job_id = await jobs.worker.run_job(payload=b'{"text":"count to 3"}')
    assert await jobs.deltas(job_id) == ["1", " 2", " 3"]
    await jobs.nothing_is_stuck(server)


@pytest.mark.fakeredis_only
async def test_down_jobs_wait_and_then_run(start: Open, server: ModelServer) -> None:
    jobs = await start()
    worker = jobs.worker

    async def trial() -> float:
        await server.stop()
        posted = [await jobs.post(payload=b'{"text":"count to 1"}') for _ in range(6)]
        await eventually(lambda: jobs.model.state is ModelState.DOWN)
        await eventually(lambda: worker.slots.busy == 0)
        assert worker.consumer.limits.closed.keys() == {"chat", "plan", "code"}
        assert "refused" in worker.consumer.limits.closed["chat"]
        for job_id in posted:
            assert (await worker.job(job_id))[b"status"] == b"queued"
        retries = [await jobs.retries(job_id) for job_id in posted]
        assert {kind for each in retries for kind in each} == {"model_unavailable"}
        began = time.monotonic()
        await server.start()
        assert await worker.ended(posted) == {b"done"}
        took_s = time.monotonic() - began
        for job_id in posted:
            assert (await worker.types(job_id)).count(b"running") <= 2
        return took_s

    await at_best_within(3.0, trial)
    await jobs.nothing_is_stuck(server)


@pytest.mark.fakeredis_only
async def test_jobs_run_soon_after_a_failing_server_is_back(
    start: Open, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it has passed its health checks, and the pause of the circuit is much longer."""
    monkeypatch.setattr("sluice.worker.features.model.circuit.FIRST_PAUSE_S", 3600.0)
    jobs = await start(max_attempts=1)
    assert TRIAL_EVERY_S < 4

    async def trial() -> float:
        server.set_default(error_answer(500, "out of memory"))
        failed = [await jobs.post() for _ in range(FAILURE_THRESHOLD)]
        assert await jobs.worker.ended(failed) == {b"error"}
        await eventually(lambda: jobs.model.state is ModelState.DOWN)
        before = len(server.requests)
        await eventually(lambda: len(server.requests) > before)  # a trial request fails
        waiting = [await jobs.post(payload=b'{"text":"count to 1"}') for _ in range(4)]
        await server.stop()
        await server.start()
        began = time.monotonic()
        server.set_default(None)
        assert await jobs.worker.ended(waiting) == {b"done"}
        return time.monotonic() - began

    await at_best_within(5.0, trial)


@pytest.mark.fakeredis_only
async def test_a_busy_server_costs_no_attempt(
    start: Open, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it answers 429."""
    monkeypatch.setattr("sluice.worker.features.model.availability.HELD_TASK_RETRY_S", 0.01)
    monkeypatch.setattr("sluice.worker.features.model.requests.RETRY_DELAYS_S", ())
    monkeypatch.setattr("sluice.worker.features.model.circuit.FIRST_PAUSE_S", 0.01)
    server.set_default(error_answer(429, "slow down"))
    jobs = await start()
    job_id = await jobs.post()

    async def postponed() -> bool:
        return len(await jobs.retries(job_id)) > jobs.worker.worker.max_attempts

    await eventually(postponed)
    server.set_default(None)
    assert await jobs.worker.settled(job_id) == b"done"


@pytest.mark.fakeredis_only
async def test_only_tasks_of_the_model_wait_for_it(start: Open, server: ModelServer) -> None:
    await server.stop()
    jobs = await start("chat", "rag")
    chat, rag = await jobs.post(task="chat"), await jobs.post(task="rag")

    async def retried() -> list[str]:
        return await jobs.retries(rag)

    await eventually(retried)
    assert await jobs.worker.types(chat) == [b"queued"]
    await server.start()
    assert await jobs.worker.settled(chat) == b"done"
    types = await jobs.worker.types(chat)
    assert types == [b"queued", b"running", *[b"message"] * 3, b"done"]


@pytest.mark.fakeredis_only
async def test_failed_and_broken_answers_use_up_attempts(start: Open, server: ModelServer) -> None:
    jobs = await start(max_attempts=2)
    server.add_answers(Answer([*tokens("a b"), Cut(reset=True)]), text_answer("a b c"))
    job_id = await jobs.worker.run_job()
    assert await jobs.retries(job_id) == ["model_stream_broken"]
    job_id, error = await jobs.fail(server, error_answer(500, "grammar exploded"))
    assert (error["kind"], error["attempt"]) == ("model_failed", 2)
    assert "grammar exploded" in error["message"]
    assert await jobs.retries(job_id) == ["model_failed"]
    await jobs.nothing_is_stuck(server)


@pytest.mark.fakeredis_only
async def test_a_broken_answer_fails_the_job_by_default(start: Open, server: ModelServer) -> None:
    jobs = await start()
    job_id, error = await jobs.fail(server, Answer([*tokens("a b"), Cut(reset=True)]))
    assert (error["kind"], error["attempt"]) == ("model_stream_broken", 1)
    assert await jobs.deltas(job_id) == ["a", " b"]
    await jobs.nothing_is_stuck(server)


@pytest.mark.fakeredis_only
async def test_no_model_fails_at_once(start: Open) -> None:
    jobs = await start(model=None)
    job_id = await jobs.worker.run_job(b"error")
    assert (await jobs.worker.error(job_id))["kind"] == "no_model"
    assert not await jobs.worker.dead_letters()


async def test_cancel_reaches_the_server_within_250_ms(start: Open, server: ModelServer) -> None:
    jobs = await start()
    server.set_default(text_answer("word " * 2000, 0.01))
    took_s = []
    for number in range(1, 4):
        job_id = await jobs.post()
        seen = await server.wait_for_request(number)
        await eventually(lambda seen=seen: seen.tokens >= 5)
        began = time.monotonic()
        await jobs.worker.cancel(job_id)
        assert await jobs.worker.settled(job_id) == b"canceled"
        await asyncio.wait_for(seen.over.wait(), 10)
        assert seen.hung_up
        took_s.append(seen.ended - began)
        result = await jobs.worker.result(job_id)
        assert result["finish_reason"] == "canceled"
        assert "word word" in result["text"]
    assert min(took_s) < 0.25, "others may be busy on this machine too"
    await jobs.nothing_is_stuck(server)


@pytest.mark.fakeredis_only
async def test_a_beat_with_a_model(
    make_worker: MakeWorker, server: ModelServer, tmp_path: Path
) -> None:
    worker = make_worker()
    services = worker.services
    model = ModelClient(settings_for(server, tmp_path))
    sender = HeartbeatSender(
        worker.consumers, worker.keys, 5.0, LoopLag(), fields=services.heartbeat_fields
    )
    assert sender.build(QueueReading()).model is None
    await model.start(services)
    request = ChatRequest([{"role": "user", "content": "count to 3"}])
    await model.complete(FakeJob().context, request, RecordingSink())
    beat = await sender.run_once()
    assert beat.model is not None
    stored = Heartbeat.from_json(await worker.client.get(worker.keys.worker("c1")), "c1")
    assert stored is not None
    assert stored.to_json() == beat.to_json()
    assert (beat.model.state, beat.model.name) == (ModelState.READY, "scripted-1")
    assert (beat.model.answers, beat.model.completion_tokens) == (1, 3)
    await model.close()
