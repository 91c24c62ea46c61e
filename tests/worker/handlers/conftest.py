"""Fixtures of the tests of handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sluice.worker.features.model.checker.checker import Checker
from sluice.worker.handlers import chat, code, plan
from sluice.worker.registry import Registry
from tests.support.worker.harness import MakeWorker
from tests.support.worker.model_tasks import Line, MakeScripted, ScriptedModel, ScriptedWorker


@pytest.fixture
async def scripted(
    make_worker: MakeWorker, request: pytest.FixtureRequest
) -> AsyncIterator[MakeScripted]:
    """Makes workers with a scripted model, for jobs of the module's `TASK`."""
    checker = Checker()

    def make(*lines: Line) -> ScriptedWorker:
        model, registry = ScriptedModel(*lines), Registry()
        chat.add_handler(registry, model, checker)
        code.add_handler(registry, model, checker)
        plan.add_handler(registry, model)
        return ScriptedWorker(make_worker(registry=registry), model, request.module.TASK)

    yield make
    await checker.close()
