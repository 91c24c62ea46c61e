"""The built-in features in one registry, and the model tasks in a whole worker."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sluice.common.aio import cancel
from sluice.common.codec import dumps
from sluice.common.contracts.jobs import TASKS
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.errors import InvalidPayload
from sluice.worker.handlers import builtin
from sluice.worker.registry import Registry
from tests.support.model.answers import Answer, tokens
from tests.support.model.server import ModelServer
from tests.support.waiting import eventually
from tests.support.worker.harness import MakeWorker, WorkerHarness
from tests.support.worker.model_tasks import joined
from tests.support.worker.tools import events

pytestmark = pytest.mark.fakeredis_only

CONTEXT: Any = None


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    settings = WorkerSettings(sluice_data_dir=str(tmp_path), embedder="off", image_detector="none")
    registry = Registry()
    builtin.register(registry, settings)
    return registry


def test_every_task_has_a_handler(registry: Registry) -> None:
    assert registry.tasks == sorted(TASKS)
    assert all(registry.resolve(task).is_async for task in TASKS)


def test_every_feature_has_the_same_signature() -> None:
    signatures = {tuple(inspect.signature(each).parameters) for each in builtin.FEATURES}
    assert signatures == {("registry", "settings", "shared")}
    assert len(set(builtin.FEATURES)) == len(builtin.FEATURES)


def test_shared_services_start_before_the_services_of_features(registry: Registry) -> None:
    assert [type(each).__name__ for each in registry.services] == [
        *("ModelClient", "Checker", "NullEmbedder", "RagService", "ToolCatalog"),
        *("ProposalsStep", "ApplyStep", "WorkflowService", "WebhookService", "ImageService"),
    ]


def test_all_tools_are_known_from_the_start(registry: Registry) -> None:
    assert registry.toolbox.names() == [
        *("calculator", "convert_units", "date_math", "json_pick", "now"),
        *("search_documents", "text_stats"),
    ]


USER = {"role": "user", "content": "a"}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["x" * 70_000]}}}
TEXT_FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": "string"}}
INVALID_PAYLOADS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("chat", {"text": "a", "bogus": 1, "x": {}}, ["bogus: Extra", "x: Extra"]),
    ("chat", {}, ["text or messages"]),
    ("chat", {"text": "a", "messages": [USER]}, ["text or messages"]),
    ("chat", {"text": ""}, ["text:"]),
    ("chat", {"messages": []}, ["messages:"]),
    ("chat", {"messages": [{**USER, "role": "robot"}]}, ["messages.0.role"]),
    ("chat", {"messages": [{**USER, "mood": 1}]}, ["messages.0.mood"]),
    ("chat", {"messages": [{"role": "user"}]}, ["content is missing"]),
    ("chat", {"messages": [{**USER, "role": "tool"}]}, ["tool_call_id"]),
    ("chat", {"messages": [{**USER, "role": "system"}], "system": "b"}, ["not both"]),
    ("chat", {"text": "a", "max_tokens": True}, ["max_tokens"]),
    ("chat", {"text": "a", "temperature": "1"}, ["temperature"]),
    ("chat", {"text": "a", "temperature": 3}, ["temperature"]),
    ("chat", {"text": "a", "stop": [""]}, ["stop.0"]),
    ("chat", {"text": "a", "tools": []}, ["tools"]),
    ("chat", {"text": "a", "tools": ["clock", {"type": "function"}]}, ["not both"]),
    ("chat", {"text": "a", "tools": [{"type": "function"}]}, ["function: Field required"]),
    ("chat", {"text": "a", "tool_choice": "auto"}, ["tool_choice needs tools"]),
    ("chat", {"text": "a", "response_format": {"type": "xml"}}, ["response_format.type"]),
    ("chat", {"text": "a", "response_format": {"type": "json_schema"}}, ["json_schema"]),
    ("chat", {"text": "a", "response_format": TEXT_FORM}, ["schema"]),
    ("chat", {"text": "a", "response_format": FORM}, ["65536 at most"]),
    ("code", {}, ["prompt"]),
    ("code", {"prompt": "a", "language": "x\ny"}, ["language"]),
    ("code", {"prompt": "a", "check": "yes"}, ["check"]),
    ("code", {"prompt": "a", "run": True}, ["run: Extra"]),
    ("plan", {}, ["goal"]),
    ("plan", {"goal": ""}, ["goal"]),
    ("plan", {"goal": "a", "max_steps": 0}, ["max_steps"]),
    ("plan", {"goal": "a", "max_steps": 51}, ["max_steps"]),
    ("plan", {"goal": "a", "aim": 1}, ["aim: Extra"]),
]


def test_errors_of_a_payload_are_named(registry: Registry) -> None:
    for task, payload, named in INVALID_PAYLOADS:
        with pytest.raises(InvalidPayload) as caught:
            registry.resolve(task).parse(payload)
        assert all(name in str(caught.value) for name in named), (payload, str(caught.value))


async def test_a_users_handler_may_call_the_one_it_replaces(registry: Registry) -> None:
    builtin_handler = registry.resolve("embed")

    async def embed(context: Any, payload: dict[str, Any]) -> Any:
        return await builtin_handler.function(context, builtin_handler.parse(payload))

    registry.add("embed", embed, max_attempts=7)
    assert registry.max_attempts_by_task == {"embed": 7}
    with pytest.raises(InvalidPayload, match="input"):
        await registry.resolve("embed").function(CONTEXT, {"input": 5})


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as started:
        yield started


@pytest.fixture
async def worker(
    make_worker: MakeWorker, server: ModelServer, tmp_path: Path
) -> AsyncIterator[WorkerHarness]:
    """A worker with the built-in handlers."""
    registry = Registry()
    settings = WorkerSettings(
        model_url=server.url, sluice_data_dir=str(tmp_path), embedder="server"
    )
    builtin.register(registry, settings)
    harness = make_worker(registry=registry)
    for service in registry.services:
        await service.start(harness.services)
    running = [asyncio.create_task(service.run()) for service in registry.services]
    yield harness
    await harness.stop()
    await cancel(*running)
    for service in registry.services:
        await service.close()


async def run(
    worker: WorkerHarness, task: str, **payload: Any
) -> tuple[dict[str, Any], list[tuple[str, str, Any]]]:
    """Run a job that succeeds; returns its result and its events."""
    job_id = await worker.run_job(task=task, payload=dumps(payload))
    return await worker.result(job_id), await worker.parsed_events(job_id)


async def test_an_answer_comes_word_by_word(worker: WorkerHarness, server: ModelServer) -> None:
    go_on = asyncio.Event()
    thought = {"reasoning_content": "They greet me."}
    server.add_answers(Answer([thought, *tokens("Hello"), go_on, *tokens(" there. Tired?")]))
    worker.start()
    [job_id] = await worker.post(payload=dumps({"text": "hi", "temperature": 0.5}))

    async def first_word() -> list[str]:
        return [data["delta"] for data in await events(worker, job_id, "message")]

    assert await eventually(first_word) == ["Hello"]
    go_on.set()
    assert await worker.settled(job_id) == b"done"
    result = await worker.result(job_id)
    every = await worker.parsed_events(job_id)
    assert result["text"] == "Hello there. Tired?" == joined(every, "worker.chat")
    assert result["reasoning"] == "They greet me."
    kinds = [kind for kind, _, _ in every]
    assert kinds.index("reasoning") < kinds.index("message") < kinds.index("usage")
    [usage] = await events(worker, job_id, "usage")
    assert usage["completion_tokens"] == result["usage"]["completion_tokens"] > 0
    assert (usage["attempt"], usage["model"], result["model"]) == (1, "scripted-1", "scripted-1")
    assert isinstance(result["first_token_ms"], int)
    [seen] = server.requests
    assert (seen.body["temperature"], seen.body["stream"]) == (0.5, True)


async def test_tools_of_the_worker_are_run_here(worker: WorkerHarness, server: ModelServer) -> None:
    server.add_tool_calls(("calculator", {"expression": "6*7"}))
    server.add_text("It is 42.")
    server.add_text('{"n": 42}')
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBER}}
    result, found = await run(
        worker, "chat", text="6 times 7?", tools=["calculator"], response_format=form
    )
    assert (result["json"], result["rounds"]) == ({"n": 42}, 2)
    [step] = result["steps"]
    assert (step["name"], step["round"]) == ("calculator", 1)
    kinds = [kind for kind, _, _ in found if kind.startswith("tool")]
    assert kinds == ["tool_call", "tool_result"]
    assert joined(found, "worker.chat") == result["text"]
    first, second, third = (seen.body for seen in server.requests)
    assert "response_format" not in first  # few servers accept both
    assert '"n":{"type":"integer"}' in first["messages"][0]["content"]
    assert second["messages"][-1]["role"] == "tool"
    # The invalid answer is requested again, without tools.
    assert "tools" not in third
    assert third["response_format"] == form


async def test_a_plan_and_a_program(worker: WorkerHarness, server: ModelServer) -> None:
    server.add_text("1. Boil water: in the kettle\n2. Brew")
    result, found = await run(worker, "plan", goal="tea")
    assert [step["title"] for step in result["steps"]] == ["Boil water", "Brew"]
    assert joined(found, "worker.plan") == result["text"]
    server.add_text("Here:\n```py\nprint(1)\n```")
    result, found = await run(worker, "code", prompt="print one", check=True)
    assert (result["code"], result["language"], result["syntax_ok"]) == ("print(1)", "python", True)
    assert joined(found, "worker.code") == result["text"]
