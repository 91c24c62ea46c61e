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
        "ModelClient",
        "Checker",
        "NullEmbedder",
        "RagService",
        "ProposalsStep",
        "ApplyStep",
        "WorkflowService",
        "WebhookService",
        "ImageService",
    ]


def test_all_tools_are_known_from_the_start(registry: Registry) -> None:
    assert registry.toolbox.names() == [
        "calculator",
        "convert_units",
        "date_math",
        "json_pick",
        "now",
        "search_documents",
        "text_stats",
    ]


def test_an_invalid_payload_is_rejected_before_the_handler_runs(registry: Registry) -> None:
    with pytest.raises(InvalidPayload, match="max_steps"):
        registry.resolve("plan").parse({"text": "a", "max_steps": "none"})


async def test_a_users_handler_may_call_the_one_it_replaces(registry: Registry) -> None:
    builtin_handler = registry.resolve("embed")

    async def embed(context: Any, payload: dict[str, Any]) -> Any:
        return await builtin_handler.function(context, builtin_handler.parse(payload))

    registry.add("embed", embed, max_attempts=7)
    assert registry.max_attempts_by_task == {"embed": 7}
    with pytest.raises(InvalidPayload, match="input"):
        await registry.resolve("embed").function(CONTEXT, {"input": 5})
