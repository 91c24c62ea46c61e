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
from tests.support.model_answers import (
    Answer,
    Cut,
    error_answer,
    reasoning_answer,
    text_answer,
    tokens,
    tool_call_answer,
)
from tests.support.model_server import ModelServer
from tests.worker.handlers.model_kit import joined
from tests.worker.kit import Rig, RigMaker
from worker.handlers import builtin
from worker.registry import Registry

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class ModelRig:
    """A worker with the built-in handlers, and its model server."""

    def __init__(self, server: ModelServer, rig: Rig) -> None:
        self.server = server
        self.rig = rig

    async def start_job(self, task: str, payload: dict[str, Any], **job: Any) -> str:
        [job_id] = await self.rig.post(task=task, payload=dumps(payload), **job)
        return job_id

    async def run(self, task: str, payload: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        """Run a job that succeeds; returns its result and its events."""
        job_id = await self.start_job(task, payload)
        assert await self.rig.settled(job_id) == b"done", await self.rig.job(job_id)
        result: dict[str, Any] = json.loads((await self.rig.job(job_id))[b"result"])
        return result, await self.rig.parsed_events(job_id)

    async def fail(self, task: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Run a job that fails; returns its error."""
        job_id = await self.start_job(task, payload)
        assert await self.rig.settled(job_id) == b"error"
        return await self.rig.error(job_id)


@pytest.fixture
async def model_rig(fake_rig: RigMaker, tmp_path: Path) -> AsyncIterator[ModelRig]:
    async with ModelServer() as server:
        settings = WorkerSettings(model_url=server.url, sluice_data_dir=str(tmp_path))
        registry = Registry()
        builtin.register(registry, settings)
        rig = fake_rig(registry=registry)
        house = rig.services
        for service in registry.services:
            await service.start(house)
        running = [asyncio.create_task(service.run()) for service in registry.services]
        rig.start()
        yield ModelRig(server, rig)
        await rig.stop()
        await cancel(*running)
        for service in registry.services:
            await service.close()


async def test_an_answer_comes_word_by_word(model_rig: ModelRig) -> None:
    model_rig.server.add_answers(reasoning_answer("They greet me.", "Hello there. How are you?"))
    result, story = await model_rig.run("chat", {"text": "hi", "temperature": 0.5})
    assert result["text"] == "Hello there. How are you?" == joined(story, "worker.chat")
    assert result["reasoning"] == "They greet me."
    kinds = [type for type, _, _ in story]
    assert kinds.index("reasoning") < kinds.index("message") < kinds.index("usage")
    usage = next(data for type, _, data in story if type == "usage")
    assert usage["completion_tokens"] == result["usage"]["completion_tokens"] > 0
    assert (usage["attempt"], usage["model"], result["model"]) == (1, "scripted-1", "scripted-1")
    assert isinstance(result["first_token_ms"], int)
    [seen] = model_rig.server.requests
    assert (seen.body["temperature"], seen.body["stream"]) == (0.5, True)


async def test_the_first_word_does_not_wait_for_the_second(model_rig: ModelRig) -> None:
    go_on = asyncio.Event()
    model_rig.server.add_answers(Answer([*tokens("One"), go_on, *tokens(" two")]))
    job_id = await model_rig.start_job("chat", {"text": "count"})
    for _ in range(1000):
        story = await model_rig.rig.parsed_events(job_id) if await model_rig.rig.job(job_id) else []
        said_so_far = [data["delta"] for type, _, data in story if type == "message"]
        if said_so_far:
            break
        await asyncio.sleep(0.01)
    assert said_so_far == ["One"]
    go_on.set()
    assert await model_rig.rig.settled(job_id) == b"done"


async def test_a_canceled_job_stops_the_server_and_keeps_its_part(model_rig: ModelRig) -> None:
    model_rig.server.add_answers(Answer([*tokens("Once upon a time"), 3600.0]))
    job_id = await model_rig.start_job("chat", {"text": "a tale"})
    seen = await model_rig.server.wait_for_request(1)
    while joined(await model_rig.rig.parsed_events(job_id), "worker.chat") != "Once upon a time":
        await asyncio.sleep(0.01)
    await model_rig.rig.cancel(job_id)
    assert await model_rig.rig.settled(job_id) == b"canceled"
    await asyncio.wait_for(seen.over.wait(), 5)
    assert seen.hung_up
    kept = json.loads((await model_rig.rig.job(job_id))[b"result"])
    assert (kept["text"], kept["finish_reason"]) == ("Once upon a time", "canceled")
    story = await model_rig.rig.parsed_events(job_id)
    assert [type for type, _, _ in story][-2:] == ["usage", "canceled"]


async def test_events_carry_the_attempt(model_rig: ModelRig) -> None:
    model_rig.server.add_answers(
        Answer([*tokens("one two"), Cut(reset=True)]), text_answer("one two three")
    )
    job_id = await model_rig.start_job("chat", {"text": "count"}, max_attempts=2)
    assert await model_rig.rig.settled(job_id) == b"done"
    story = await model_rig.rig.parsed_events(job_id)
    by_attempt: dict[int, list[dict[str, Any]]] = {}
    for type, _, data in story:
        if type == "message":
            by_attempt.setdefault(data["attempt"], []).append(data)
    for spoken, text in ((by_attempt[1], "one two"), (by_attempt[2], "one two three")):
        assert "".join(data["delta"] for data in spoken) == text
        assert [data["n"] for data in spoken] == list(range(1, len(spoken) + 1))
    retry = next(data for type, _, data in story if type == "retry")
    assert retry["kind"] == "model_stream_broken"
    assert json.loads((await model_rig.rig.job(job_id))[b"result"])["text"] == "one two three"


async def test_without_grammars_the_schema_goes_into_the_prompt(model_rig: ModelRig) -> None:
    model_rig.server.add_text("The number is seven.")
    model_rig.server.add_text('Of course:\n```json\n{"n": 7}\n```')
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBER}}
    result, story = await model_rig.run("chat", {"text": "a number", "response_format": form})
    assert result["json"] == {"n": 7}
    assert joined(story, "worker.chat") == result["text"]
    first, second = model_rig.server.requests
    assert first.body["response_format"] == second.body["response_format"] == form
    assert "response_format" not in first.body["messages"][-1]["content"]
    assert json.dumps(NUMBER, separators=(",", ":")) in second.body["messages"][-1]["content"]


async def test_tools_of_the_worker_are_run_here(model_rig: ModelRig) -> None:
    model_rig.server.add_answers(
        tool_call_answer(("calculator", {"expression": "6*7"})), text_answer('{"n": 42}')
    )
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBER}}
    result, story = await model_rig.run(
        "chat", {"text": "6 times 7?", "tools": ["calculator"], "response_format": form}
    )
    assert (result["json"], result["rounds"]) == ({"n": 42}, 2)
    [step] = result["steps"]
    assert (step["name"], step["round"]) == ("calculator", 1)
    assert [type for type, _, _ in story if type.startswith("tool")] == ["tool_call", "tool_result"]
    first, second = model_rig.server.requests
    assert "response_format" not in first.body  # few servers accept both
    assert '"n":{"type":"integer"}' in first.body["messages"][0]["content"]
    assert second.body["messages"][-1]["role"] == "tool"
    assert joined(story, "worker.chat") == result["text"]


async def test_an_agent_with_an_invalid_answer_is_asked_again(model_rig: ModelRig) -> None:
    model_rig.server.add_answers(
        tool_call_answer(("calculator", {"expression": "6*7"})),
        text_answer("It is 42."),
        text_answer('{"n": 42}'),
    )
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBER}}
    payload = {"text": "6 times 7?", "tools": ["calculator"], "response_format": form}
    result, _ = await model_rig.run("chat", payload)
    assert result["json"] == {"n": 42}
    assert "tools" not in model_rig.server.requests[2].body
    assert model_rig.server.requests[2].body["response_format"] == form


async def test_functions_of_the_client_are_left_to_it(model_rig: ModelRig) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    model_rig.server.add_tool_calls(("f", {"a": 1}))
    result, _ = await model_rig.run(
        "chat", {"text": "go", "tools": [tool], "tool_choice": "required"}
    )
    assert result["finish_reason"] == "tool_calls"
    [call] = result["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert model_rig.server.requests[0].body["tool_choice"] == "required"


async def test_an_unknown_tool_is_named(model_rig: ModelRig) -> None:
    error = await model_rig.fail("chat", {"text": "go", "tools": ["no_such"]})
    assert error["kind"] == "unknown_tool"
    assert "no_such" in error["message"]
    assert model_rig.server.requests == []


async def test_a_refusal_of_the_server_is_passed_on(model_rig: ModelRig) -> None:
    model_rig.server.add_answers(error_answer(400, "too long"), error_answer(400, "too long"))
    error = await model_rig.fail("chat", {"text": "a"})
    assert error["kind"] == "model_refused"
    assert "too long" in error["message"]


async def test_a_plan_and_a_program(model_rig: ModelRig) -> None:
    model_rig.server.add_text("1. Boil water: in the kettle\n2. Brew")
    result, story = await model_rig.run("plan", {"goal": "tea"})
    assert [step["title"] for step in result["steps"]] == ["Boil water", "Brew"]
    assert joined(story, "worker.plan") == result["text"]
    model_rig.server.add_text("Here:\n```py\nprint(1)\n```")
    result, story = await model_rig.run("code", {"prompt": "print one", "check": True})
    assert (result["code"], result["language"], result["syntax_ok"]) == ("print(1)", "python", True)
    assert joined(story, "worker.code") == result["text"]
