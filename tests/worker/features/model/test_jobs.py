"""Model jobs on a real worker, with all kinds of server failures."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from common.aio import cancel
from common.contracts.jobs import EventType
from common.contracts.workers import ModelState
from tests.conftest import eventually
from tests.support.model_answers import Answer, Cut, body_answer, error_answer, text_answer, tokens
from tests.support.model_server import LOADING, READY, ModelServer
from tests.worker.features.model.kit import settings_for
from tests.worker.kit import Rig, RigMaker, registry_of
from worker.execution.context import JobContext
from worker.features.model.client import ModelClient
from worker.features.model.types import ChatRequest


class EventSink:
    """A sink that emits an event for every piece."""

    def __init__(self, context: JobContext) -> None:
        self._context = context

    async def text(self, delta: str) -> None:
        await self._context.emit(EventType.MESSAGE, {"delta": delta})

    async def reasoning(self, delta: str) -> None:
        pass

    async def progress(self, done: int, total: int) -> None:
        pass


@contextlib.asynccontextmanager
async def working(
    make: RigMaker, settings: Any, *tasks: str, **options: Any
) -> AsyncIterator[tuple[Rig, ModelClient]]:
    """A worker whose only handler asks the model."""
    model = ModelClient(settings)

    async def handler(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
        messages = [{"role": "user", "content": payload.get("text", "hi")}]
        answer = await model.complete(context, ChatRequest(messages), EventSink(context))
        return {"text": answer.text, "finish_reason": answer.finish_reason}

    terms = options.pop("terms", {})
    rig = make(registry=registry_of(handler, *tasks, **terms), **options)
    await model.start(rig.services)
    watching = asyncio.ensure_future(model.run())
    rig.start()
    try:
        yield rig, model
    finally:
        await rig.stop(0.1)
        await cancel(watching)
        await model.close()


#: A short timeout to provoke an error; only one, so that no other expires first.
SHORT = {
    "model_first_token_timeout": {"model_first_token_timeout_s": 1.5},
    "model_idle_timeout": {"model_idle_timeout_s": 1.0},
    "model_total_timeout": {"model_total_timeout_s": 3.0},
}


@pytest.fixture
def calm(server: ModelServer, tmp_path: Path) -> Any:
    """Settings of a worker with the usual timeouts."""
    return settings_for(server, tmp_path)


async def post(rig: Rig, **changes: Any) -> str:
    [job_id] = await rig.post(**changes)
    return job_id


async def types(rig: Rig, job_id: str) -> list[str]:
    return [kind for kind, _, _ in await rig.parsed_events(job_id)]


async def retries(rig: Rig, job_id: str) -> list[dict[str, Any]]:
    return [data for kind, _, data in await rig.parsed_events(job_id) if kind == "retry"]


async def nothing_is_stuck(rig: Rig, server: ModelServer, model: ModelClient) -> None:
    """Checks that no message is pending, no request open and no slot taken, and that another job
    runs.
    """
    await rig.all_acked()
    await eventually(lambda: server.active == 0)
    await eventually(lambda: model.reading().busy == 0)
    server.set_default(None)
    job_id = await post(rig, payload=b'{"text":"count to 2"}')
    assert await rig.settled(job_id) == b"done"


async def test_an_answer(rig: RigMaker, server: ModelServer, calm: Any) -> None:
    async with working(rig, calm) as (worker, model):
        job_id = await post(worker, payload=b'{"text":"count to 3"}')
        assert await worker.settled(job_id) == b"done"
        story = await worker.parsed_events(job_id)
        assert [data["delta"] for kind, _, data in story if kind == "message"] == ["1", " 2", " 3"]
        await nothing_is_stuck(worker, server, model)


async def test_down_jobs_wait_and_then_run(
    fake_rig: RigMaker, server: ModelServer, calm: Any
) -> None:
    best_s = float("inf")
    async with working(fake_rig, calm) as (worker, model):
        for _ in range(3):
            await server.stop()
            jobs = [await post(worker, payload=b'{"text":"count to 1"}') for _ in range(6)]
            await eventually(lambda: model.state is ModelState.DOWN)
            await eventually(lambda: worker.slots.busy == 0)
            assert worker.consumer.limits.closed.keys() == {"chat", "plan", "code"}
            assert "refused" in worker.consumer.limits.closed["chat"]
            for job_id in jobs:
                assert (await worker.job(job_id))[b"status"] == b"queued"
            reported = [data for job_id in jobs for data in await retries(worker, job_id)]
            assert reported, "whoever found out was put off"
            assert {data["kind"] for data in reported} == {"model_unavailable"}
            began = time.monotonic()
            await server.start()
            assert await worker.ended(jobs) == {b"done"}
            best_s = min(best_s, time.monotonic() - began)
            for job_id in jobs:
                assert (await types(worker, job_id)).count("running") <= 2
            if best_s < 3:
                break
        assert best_s < 3, "others may be busy on this machine too"
        await nothing_is_stuck(worker, server, model)


async def test_a_busy_server_costs_no_attempt(
    fake_rig: RigMaker, server: ModelServer, calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it answers 503."""
    monkeypatch.setattr("worker.features.model.availability.HELD_TASK_RETRY_S", 0.01)
    monkeypatch.setattr("worker.features.model.requests.RETRY_DELAYS_S", ())
    monkeypatch.setattr("worker.features.model.availability.FIRST_PAUSE_S", 0.01)
    server.set_default(error_answer(429, "slow down"))
    async with working(fake_rig, calm) as (worker, _):
        job_id = await post(worker)
        most = worker.worker.max_attempts

        async def postponed() -> bool:
            return len(await retries(worker, job_id)) > most

        await eventually(postponed)
        server.set_default(None)
        assert await worker.settled(job_id) == b"done"


async def test_loading_jobs_wait(fake_rig: RigMaker, tmp_path: Path) -> None:
    async with ModelServer() as server:
        server.state = LOADING
        async with working(fake_rig, settings_for(server, tmp_path)) as (worker, model):
            job_id = await post(worker)
            await eventually(lambda: worker.consumer.limits.closed)
            assert "Loading model" in worker.consumer.limits.closed["chat"]
            await asyncio.sleep(0.1)
            assert await types(worker, job_id) == ["queued"]
            server.state = READY
            assert await worker.settled(job_id) == b"done"
            assert await types(worker, job_id) == ["queued", "running", "message", "message",
                                                   "message", "done"]  # fmt: skip
            await nothing_is_stuck(worker, server, model)


async def test_other_tasks_do_not_wait_for_a_model(
    fake_rig: RigMaker, server: ModelServer, calm: Any
) -> None:
    await server.stop()
    async with working(fake_rig, calm, "chat", "rag") as (worker, _):
        chat, rag = await post(worker, task="chat"), await post(worker, task="rag")

        async def reported() -> bool:
            return bool(await retries(worker, rag))

        await eventually(reported)
        assert await types(worker, chat) == ["queued"]


@pytest.mark.parametrize(
    ("answer", "kind", "said_before"),
    [
        pytest.param(lambda: Answer([60.0]), "model_first_token_timeout", [], id="slow to begin"),
        pytest.param(
            lambda: Answer([*tokens("a b"), 60.0]), "model_idle_timeout", ["a", " b"], id="silent"
        ),
        pytest.param(
            lambda: text_answer("word " * 50, 0.2),
            "model_total_timeout",
            None,
            id="slow",
        ),
        pytest.param(lambda: body_answer(b"<html>"), "model_answer_invalid", [], id="garbage"),
        pytest.param(
            lambda: Answer([*tokens("a"), b"data: {oops\n\n"]),
            "model_answer_invalid",
            ["a"],
            id="garbage in mid-stream",
        ),
        pytest.param(
            lambda: Answer([*tokens("a b"), Cut(reset=True)]),
            "model_stream_broken",
            ["a", " b"],
            id="dies in mid-stream",
        ),
        pytest.param(
            lambda: Answer([*tokens("a b"), Cut()]),
            "model_stream_broken",
            ["a", " b"],
            id="hangs up in mid-stream",
        ),
        pytest.param(lambda: error_answer(400, "no"), "model_refused", [], id="refuses"),
        pytest.param(lambda: error_answer(404, "no"), "model_refused", [], id="no such model"),
    ],
)
async def test_the_right_error_and_nothing_stuck(
    fake_rig: RigMaker,
    server: ModelServer,
    tmp_path: Path,
    answer: Callable[[], Answer],
    kind: str,
    said_before: list[str] | None,
) -> None:
    settings = settings_for(server, tmp_path, **SHORT.get(kind, {}))
    async with working(fake_rig, settings) as (worker, model):
        server.set_default(answer())
        job_id = await post(worker)
        assert await worker.settled(job_id) == b"error"
        error = await worker.error(job_id)
        assert (error["kind"], error["attempt"]) == (kind, 1)
        story = await worker.parsed_events(job_id)
        reported = [data["delta"] for each, _, data in story if each == "message"]
        assert said_before is None or reported == said_before
        await nothing_is_stuck(worker, server, model)


async def test_500s_use_up_the_attempts(fake_rig: RigMaker, server: ModelServer, calm: Any) -> None:
    async with working(fake_rig, calm, terms={"max_attempts": 2}) as (rig, model):
        server.set_default(error_answer(500, "grammar exploded"))
        job_id = await post(rig)
        assert await rig.settled(job_id) == b"error"
        error = await rig.error(job_id)
        assert (error["kind"], error["attempt"]) == ("model_failed", 2)
        assert "grammar exploded" in error["message"]
        assert [data["kind"] for data in await retries(rig, job_id)] == ["model_failed"]
        await nothing_is_stuck(rig, server, model)


async def test_a_broken_answer_is_retried_if_attempts_are_configured(
    fake_rig: RigMaker, server: ModelServer, calm: Any
) -> None:
    async with working(fake_rig, calm, terms={"max_attempts": 3}) as (worker, model):
        server.add_answers(Answer([*tokens("a b"), Cut(reset=True)]), text_answer("a b c"))
        job_id = await post(worker)
        assert await worker.settled(job_id) == b"done"
        kinds = await types(worker, job_id)
        assert kinds.count("running") == 2
        [retry] = await retries(worker, job_id)
        assert retry["kind"] == "model_stream_broken"
        await nothing_is_stuck(worker, server, model)


async def test_no_model_fails_at_once(fake_rig: RigMaker, tmp_path: Path) -> None:
    async with working(fake_rig, settings_for(None, tmp_path)) as (worker, _):
        job_id = await post(worker)
        assert await worker.settled(job_id) == b"error"
        error = await worker.error(job_id)
        assert error["kind"] == "no_model"
        assert "MODEL_URL" in error["message"]
        assert "sluice model serve" in error["message"]
        assert not await worker.dead_letters(), "nothing to look into"


async def test_as_many_at_once_as_the_server_has_slots(
    fake_rig: RigMaker, server: ModelServer, calm: Any
) -> None:
    server.set_default(text_answer("a b c", 0.01))
    async with working(fake_rig, calm, max_inflight=8) as (worker, model):
        jobs = [await post(worker) for _ in range(12)]
        assert await worker.ended(jobs) == {b"done"}
        assert server.most_active == 2
        assert model.reading().waiting == 0


async def test_cancel_reaches_the_server_within_250_ms(
    rig: RigMaker, server: ModelServer, calm: Any
) -> None:
    async with working(rig, calm) as (worker, model):
        server.set_default(text_answer("word " * 2000, 0.01))
        took_s = []
        for number in range(1, 4):
            job_id = await post(worker)
            seen = await server.wait_for_request(number)
            await eventually(lambda seen=seen: seen.tokens >= 5)
            began = time.monotonic()
            await worker.cancel(job_id)
            assert await worker.settled(job_id) == b"canceled"
            await asyncio.wait_for(seen.over.wait(), 10)
            assert seen.hung_up
            took_s.append(seen.ended - began)
            result = (await worker.job(job_id))[b"result"]
            assert b'"finish_reason":"canceled"' in result
            assert b"word word" in result
        assert min(took_s) < 0.25, "others may be busy on this machine too"
        await nothing_is_stuck(worker, server, model)


async def test_a_timed_out_job_closes_the_connection(
    fake_rig: RigMaker, server: ModelServer, tmp_path: Path
) -> None:
    settings = settings_for(server, tmp_path)
    async with working(fake_rig, settings, terms={"timeout_s": 0.3}) as (worker, model):
        server.set_default(text_answer("word " * 2000, 0.01))
        job_id = await post(worker)
        assert await worker.settled(job_id) == b"error"
        assert (await worker.error(job_id))["kind"] == "timeout"
        await asyncio.wait_for(server.requests[0].over.wait(), 10)
        assert server.requests[0].hung_up
        await nothing_is_stuck(worker, server, model)


async def test_a_stopping_worker_releases_the_job(
    fake_rig: RigMaker, server: ModelServer, tmp_path: Path
) -> None:
    server.set_default(text_answer("word " * 2000, 0.01))
    async with working(fake_rig, settings_for(server, tmp_path)) as (worker, _):
        job_id = await post(worker)
        seen = await server.wait_for_request(1)
        await eventually(lambda: seen.tokens >= 3)
        await worker.stop(0.05)
        await asyncio.wait_for(seen.over.wait(), 10)
        assert seen.hung_up
        assert (await worker.job(job_id))[b"status"] == b"queued"
