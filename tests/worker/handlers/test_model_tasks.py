"""The model tasks in a whole worker, with a scripted model server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from common.aio import cancel
from common.codec import dumps
from common.settings.worker import WorkerSettings
from tests.support.model.answers import (
    Answer,
    Cut,
    reasoning_answer,
    text_answer,
    tokens,
    tool_call_answer,
)
from tests.support.model.server import ModelServer
from tests.support.worker.harness import MakeWorker, WorkerHarness
from tests.support.worker.model_tasks import joined
from worker.handlers import builtin
from worker.registry import Registry

pytestmark = pytest.mark.fakeredis_only

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class ModelWorker:
    """A worker with the built-in handlers, and its model server."""

    def __init__(self, server: ModelServer, harness: WorkerHarness) -> None:
        self.server = server
        self.harness = harness

    async def start_job(self, task: str, payload: dict[str, Any], **job: Any) -> str:
        [job_id] = await self.harness.post(task=task, payload=dumps(payload), **job)
        return job_id

    async def run(self, task: str, payload: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        """Run a job that succeeds; returns its result and its events."""
        job_id = await self.start_job(task, payload)
        assert await self.harness.settled(job_id) == b"done", await self.harness.job(job_id)
        result: dict[str, Any] = json.loads((await self.harness.job(job_id))[b"result"])
        return result, await self.harness.parsed_events(job_id)


@pytest.fixture
async def worker(make_worker: MakeWorker, tmp_path: Path) -> AsyncIterator[ModelWorker]:
    async with ModelServer() as server:
        settings = WorkerSettings(model_url=server.url, sluice_data_dir=str(tmp_path))
        registry = Registry()
        builtin.register(registry, settings)
        harness = make_worker(registry=registry)
        for service in registry.services:
            await service.start(harness.services)
        running = [asyncio.create_task(service.run()) for service in registry.services]
        harness.start()
        yield ModelWorker(server, harness)
        await harness.stop()
        await cancel(*running)
        for service in registry.services:
            await service.close()


async def test_an_answer_comes_word_by_word(worker: ModelWorker) -> None:
    worker.server.add_answers(reasoning_answer("They greet me.", "Hello there. How are you?"))
    result, events = await worker.run("chat", {"text": "hi", "temperature": 0.5})
    assert result["text"] == "Hello there. How are you?" == joined(events, "worker.chat")
    assert result["reasoning"] == "They greet me."
    kinds = [type for type, _, _ in events]
    assert kinds.index("reasoning") < kinds.index("message") < kinds.index("usage")
    usage = next(data for type, _, data in events if type == "usage")
    assert usage["completion_tokens"] == result["usage"]["completion_tokens"] > 0
    assert (usage["attempt"], usage["model"], result["model"]) == (1, "scripted-1", "scripted-1")
    assert isinstance(result["first_token_ms"], int)
    [seen] = worker.server.requests
    assert (seen.body["temperature"], seen.body["stream"]) == (0.5, True)


async def test_the_first_word_does_not_wait_for_the_second(worker: ModelWorker) -> None:
    go_on = asyncio.Event()
    worker.server.add_answers(Answer([*tokens("One"), go_on, *tokens(" two")]))
    job_id = await worker.start_job("chat", {"text": "count"})
    for _ in range(1000):
        events = (
            await worker.harness.parsed_events(job_id) if await worker.harness.job(job_id) else []
        )
        said_so_far = [data["delta"] for type, _, data in events if type == "message"]
        if said_so_far:
            break
        await asyncio.sleep(0.01)
    assert said_so_far == ["One"]
    go_on.set()
    assert await worker.harness.settled(job_id) == b"done"


async def test_a_canceled_job_stops_the_server_and_keeps_its_part(worker: ModelWorker) -> None:
    worker.server.add_answers(Answer([*tokens("Once upon a time"), 3600.0]))
    job_id = await worker.start_job("chat", {"text": "a tale"})
    seen = await worker.server.wait_for_request(1)
    while joined(await worker.harness.parsed_events(job_id), "worker.chat") != "Once upon a time":
        await asyncio.sleep(0.01)
    await worker.harness.cancel(job_id)
    assert await worker.harness.settled(job_id) == b"canceled"
    await asyncio.wait_for(seen.over.wait(), 5)
    assert seen.hung_up
    kept = json.loads((await worker.harness.job(job_id))[b"result"])
    assert (kept["text"], kept["finish_reason"]) == ("Once upon a time", "canceled")
    events = await worker.harness.parsed_events(job_id)
    assert [type for type, _, _ in events][-2:] == ["usage", "canceled"]


async def test_events_carry_the_attempt(worker: ModelWorker) -> None:
    worker.server.add_answers(
        Answer([*tokens("one two"), Cut(reset=True)]), text_answer("one two three")
    )
    job_id = await worker.start_job("chat", {"text": "count"}, max_attempts=2)
    assert await worker.harness.settled(job_id) == b"done"
    events = await worker.harness.parsed_events(job_id)
    by_attempt: dict[int, list[dict[str, Any]]] = {}
    for type, _, data in events:
        if type == "message":
            by_attempt.setdefault(data["attempt"], []).append(data)
    for spoken, text in ((by_attempt[1], "one two"), (by_attempt[2], "one two three")):
        assert "".join(data["delta"] for data in spoken) == text
        assert [data["n"] for data in spoken] == list(range(1, len(spoken) + 1))
    retry = next(data for type, _, data in events if type == "retry")
    assert retry["kind"] == "model_stream_broken"
    assert json.loads((await worker.harness.job(job_id))[b"result"])["text"] == "one two three"


async def test_tools_of_the_worker_are_run_here(worker: ModelWorker) -> None:
    worker.server.add_answers(
        tool_call_answer(("calculator", {"expression": "6*7"})), text_answer('{"n": 42}')
    )
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBER}}
    result, events = await worker.run(
        "chat", {"text": "6 times 7?", "tools": ["calculator"], "response_format": form}
    )
    assert (result["json"], result["rounds"]) == ({"n": 42}, 2)
    [step] = result["steps"]
    assert (step["name"], step["round"]) == ("calculator", 1)
    assert [type for type, _, _ in events if type.startswith("tool")] == [
        "tool_call",
        "tool_result",
    ]
    first, second = worker.server.requests
    assert "response_format" not in first.body  # few servers accept both
    assert '"n":{"type":"integer"}' in first.body["messages"][0]["content"]
    assert second.body["messages"][-1]["role"] == "tool"
    assert joined(events, "worker.chat") == result["text"]


async def test_an_agent_with_an_invalid_answer_is_asked_again(worker: ModelWorker) -> None:
    worker.server.add_answers(
        tool_call_answer(("calculator", {"expression": "6*7"})),
        text_answer("It is 42."),
        text_answer('{"n": 42}'),
    )
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBER}}
    payload = {"text": "6 times 7?", "tools": ["calculator"], "response_format": form}
    result, _ = await worker.run("chat", payload)
    assert result["json"] == {"n": 42}
    assert "tools" not in worker.server.requests[2].body
    assert worker.server.requests[2].body["response_format"] == form


async def test_a_plan_and_a_program(worker: ModelWorker) -> None:
    worker.server.add_text("1. Boil water: in the kettle\n2. Brew")
    result, events = await worker.run("plan", {"goal": "tea"})
    assert [step["title"] for step in result["steps"]] == ["Boil water", "Brew"]
    assert joined(events, "worker.plan") == result["text"]
    worker.server.add_text("Here:\n```py\nprint(1)\n```")
    result, events = await worker.run("code", {"prompt": "print one", "check": True})
    assert (result["code"], result["language"], result["syntax_ok"]) == ("print(1)", "python", True)
    assert joined(events, "worker.code") == result["text"]
