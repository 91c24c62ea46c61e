"""The built-in features, all registered in one registry."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from common.contracts.jobs import TASKS
from common.settings.worker import WorkerSettings
from worker.errors import InvalidPayload
from worker.handlers import builtin
from worker.registry import Registry

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
        *("ModelClient", "Checker", "NullEmbedder", "RagService", "ProposalsStep", "ApplyStep"),
        *("WorkflowService", "WebhookService", "ImageService"),
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
