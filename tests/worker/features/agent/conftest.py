"""Fixtures of the agent tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.worker.harness import MakeWorker
from tests.support.worker.model_tasks import ScriptedWorker
from tests.support.worker.tools import AgentHarness

Run = Callable[[AgentHarness], Awaitable[tuple[dict[str, Any], list[tuple[str, str, Any]]]]]


@pytest.fixture
def run(make_worker: MakeWorker) -> Run:
    """Runs a job of an agent; returns its result and its events."""
    return lambda agent: ScriptedWorker(
        make_worker(registry=agent.registry), agent.model, "chat"
    ).run()
