"""Model jobs on a real worker, with failing servers, and the model in its heartbeat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from common.aio import cancel
from common.contracts.jobs import EventType
from common.contracts.workers import ModelState
from common.jobs.queue_stats import QueueReading
from common.observability.heartbeats import Heartbeat
from common.process.usage import LoopLag
from tests.support.model.answers import Answer, Cut, error_answer, text_answer, tokens
from tests.support.model.server import LOADING, READY, ModelServer
from tests.support.waiting import eventually
from tests.support.worker.harness import MakeWorker, WorkerHarness, registry_of
from tests.support.worker.model import FakeJob, RecordingSink, settings_for
from tests.support.worker.timing import at_best_within
from worker.execution.context import JobContext
from worker.features.model.client import ModelClient
from worker.features.model.types import ChatRequest
from worker.monitoring.heartbeat import HeartbeatSender


class EventSink(RecordingSink):
    """A sink that emits an event for every piece of text."""

    def __init__(self, context: JobContext) -> None:
        super().__init__()
        self._context = context

    async def text(self, delta: str) -> None:
        await self._context.emit(EventType.MESSAGE, {"delta": delta})


class ModelWorker:
    """A worker whose only handler asks the model."""

    def __init__(self, make: MakeWorker, settings: Any, tasks: Any, terms: Any, **options: Any):
        self.model = ModelClient(settings)
        self.worker: WorkerHarness = make(
            registry=registry_of(self._handle, *tasks, **terms), **options
        )
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

    async def failed(self, job_id: str) -> dict[str, Any]:
        assert await self.worker.settled(job_id) == b"error"
        return await self.worker.error(job_id)

    async def types(self, job_id: str) -> list[str]:
        return [kind for kind, _, _ in await self.worker.parsed_events(job_id)]

    async def events(self, job_id: str, kind: str) -> list[dict[str, Any]]:
        return [data for each, _, data in await self.worker.parsed_events(job_id) if each == kind]

    async def nothing_is_stuck(self, server: ModelServer) -> None:
        """No message is pending, no request open, no slot taken, and another job runs."""
        await self.worker.all_acked()
        await eventually(lambda: server.active == 0)
        await eventually(lambda: self.model.reading().busy == 0)
        server.set_default(None)
        job_id = await self.post(payload=b'{"text":"count to 2"}')
        assert await self.worker.settled(job_id) == b"done"


Open = Callable[..., Awaitable[ModelWorker]]


@pytest.fixture
async def start(
    make_worker: MakeWorker, server: ModelServer, tmp_path: Path
) -> AsyncIterator[Open]:
    """Starts workers of that model server, or of none, and stops them."""
    started: list[ModelWorker] = []

    async def make(
        *tasks: str, model: ModelServer | None = server, terms: Any = None, **options: Any
    ) -> ModelWorker:
        settings = settings_for(model, tmp_path)
        started.append(ModelWorker(make_worker, settings, tasks, terms or {}, **options))
        await started[-1].start()
        return started[-1]

    yield make
    for each in started:
        await each.close()


async def test_an_answer(start: Open, server: ModelServer) -> None:
    jobs = await start()
    job_id = await jobs.post(payload=b'{"text":"count to 3"}')
    assert await jobs.worker.settled(job_id) == b"done"
    assert [data["delta"] for data in await jobs.events(job_id, "message")] == ["1", " 2", " 3"]
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
        retries = [data for job_id in posted for data in await jobs.events(job_id, "retry")]
        assert {data["kind"] for data in retries} == {"model_unavailable"}
        began = time.monotonic()
        await server.start()
        assert await worker.ended(posted) == {b"done"}
        took_s = time.monotonic() - began
        for job_id in posted:
            assert (await jobs.types(job_id)).count("running") <= 2
        return took_s

    await at_best_within(3.0, trial)
    await jobs.nothing_is_stuck(server)


@pytest.mark.fakeredis_only
async def test_a_busy_server_costs_no_attempt(
    start: Open, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it answers 429."""
    monkeypatch.setattr("worker.features.model.availability.HELD_TASK_RETRY_S", 0.01)
    monkeypatch.setattr("worker.features.model.requests.RETRY_DELAYS_S", ())
    monkeypatch.setattr("worker.features.model.availability.FIRST_PAUSE_S", 0.01)
    server.set_default(error_answer(429, "slow down"))
    jobs = await start()
    job_id = await jobs.post()

    async def postponed() -> bool:
        return len(await jobs.events(job_id, "retry")) > jobs.worker.worker.max_attempts

    await eventually(postponed)
    server.set_default(None)
    assert await jobs.worker.settled(job_id) == b"done"


@pytest.mark.fakeredis_only
async def test_loading_jobs_wait(start: Open, server: ModelServer) -> None:
    server.state = LOADING
    jobs = await start()
    job_id = await jobs.post()
    await eventually(lambda: jobs.worker.consumer.limits.closed)
    assert "Loading model" in jobs.worker.consumer.limits.closed["chat"]
    await asyncio.sleep(0.1)
    assert await jobs.types(job_id) == ["queued"]
    server.state = READY
    assert await jobs.worker.settled(job_id) == b"done"
    assert await jobs.types(job_id) == ["queued", "running", *["message"] * 3, "done"]
    await jobs.nothing_is_stuck(server)


@pytest.mark.fakeredis_only
async def test_other_tasks_do_not_wait_for_a_model(start: Open, server: ModelServer) -> None:
    await server.stop()
    jobs = await start("chat", "rag")
    chat, rag = await jobs.post(task="chat"), await jobs.post(task="rag")

    async def reported() -> bool:
        return bool(await jobs.events(rag, "retry"))

    await eventually(reported)
    assert await jobs.types(chat) == ["queued"]


@pytest.mark.fakeredis_only
@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (Answer([*tokens("a"), b"data: {oops\n\n"]), "model_answer_invalid", ["a"]),
        (Answer([*tokens("a b"), Cut(reset=True)]), "model_stream_broken", ["a", " b"]),
        (error_answer(400, "no"), "model_refused", []),
    ],
    ids=["invalid", "breaks off", "refused"],
)
async def test_the_right_error_and_nothing_stuck(
    start: Open, server: ModelServer, answer: Answer, kind: str, text: list[str]
) -> None:
    jobs = await start()
    server.set_default(answer)
    job_id = await jobs.post()
    error = await jobs.failed(job_id)
    assert (error["kind"], error["attempt"]) == (kind, 1)
    assert [data["delta"] for data in await jobs.events(job_id, "message")] == text
    await jobs.nothing_is_stuck(server)


@pytest.mark.fakeredis_only
async def test_failed_and_broken_answers_use_up_attempts(start: Open, server: ModelServer) -> None:
    jobs = await start(terms={"max_attempts": 2})
    server.add_answers(Answer([*tokens("a b"), Cut(reset=True)]), text_answer("a b c"))
    job_id = await jobs.post()
    assert await jobs.worker.settled(job_id) == b"done"
    assert (await jobs.types(job_id)).count("running") == 2
    [retry] = await jobs.events(job_id, "retry")
    assert retry["kind"] == "model_stream_broken"
    server.set_default(error_answer(500, "grammar exploded"))
    job_id = await jobs.post()
    error = await jobs.failed(job_id)
    assert (error["kind"], error["attempt"]) == ("model_failed", 2)
    assert "grammar exploded" in error["message"]
    assert [data["kind"] for data in await jobs.events(job_id, "retry")] == ["model_failed"]
    await jobs.nothing_is_stuck(server)


@pytest.mark.fakeredis_only
async def test_no_model_fails_at_once(start: Open) -> None:
    jobs = await start(model=None)
    assert (await jobs.failed(await jobs.post()))["kind"] == "no_model"
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
        result = (await jobs.worker.job(job_id))[b"result"]
        assert b'"finish_reason":"canceled"' in result
        assert b"word word" in result
    assert min(took_s) < 0.25, "others may be busy on this machine too"
    await jobs.nothing_is_stuck(server)


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("what", ["timeout", "stop"])
async def test_an_interrupted_job_closes_the_connection(
    start: Open, server: ModelServer, what: str
) -> None:
    server.set_default(text_answer("word " * 2000, 0.01))
    jobs = await start(terms={"timeout_s": 0.3} if what == "timeout" else None)
    job_id = await jobs.post()
    seen = await server.wait_for_request(1)
    if what == "timeout":
        assert (await jobs.failed(job_id))["kind"] == "timeout"
    else:
        await eventually(lambda: seen.tokens >= 3)
        await jobs.worker.stop(0.05)
        assert (await jobs.worker.job(job_id))[b"status"] == b"queued"
    await asyncio.wait_for(seen.over.wait(), 10)
    assert seen.hung_up
    if what == "timeout":
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
