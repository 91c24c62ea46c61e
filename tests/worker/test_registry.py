"""The registry: which function does which task, and with what payload."""

from __future__ import annotations

import functools
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from sluice.common.contracts.jobs import Task
from sluice.common.errors import SettingsError
from sluice.common.settings.base import load_settings
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.errors import InvalidPayload, UnknownTask
from sluice.worker.main import build_registry
from sluice.worker.registry import Registry
from tests.support.worker.harness import MakeWorker


class Prompt(BaseModel):
    text: str
    n: int = 1


async def coroutine(context: Any, payload: dict[str, Any]) -> Any: ...


def plain(context: Any, payload: Any) -> Any: ...


async def typed(context: Any, payload: Prompt) -> Any:
    return [payload.text] * payload.n


def test_async_and_plain_functions() -> None:
    registry = Registry()
    registry.add("plan", plain)
    assert not registry.resolve("plan").is_async
    registry.add("chat", plain)
    registry.add("chat", coroutine)  # replaces the first
    assert registry.resolve("chat").function is coroutine
    assert registry.resolve("chat").is_async
    assert registry.resolve("chat").model is None
    assert registry.handler("chat", "plan")(coroutine) is coroutine
    assert registry.resolve("chat") == registry.resolve("plan")


def test_methods_partials_and_callable_objects() -> None:
    class Model:
        async def answer(self, context: Any, payload: Prompt) -> Any: ...

        async def __call__(self, context: Any, payload: Prompt) -> Any: ...

    async def with_model(model: object, context: Any, payload: Prompt) -> Any: ...

    registry = Registry()
    for function in (Model().answer, functools.partial(with_model, "m"), Model()):
        registry.add("chat", function)
        handler = registry.resolve("chat")
        assert handler.is_async, function
        assert handler.model is Prompt, function


def test_unknown_tasks() -> None:
    registry = Registry()
    with pytest.raises(ValueError, match=r"'dance'.*chat"):
        registry.add("dance", plain)
    with pytest.raises(UnknownTask, match=r"'chat'.*no task"):
        registry.resolve("chat")
    with pytest.raises(UnknownTask):
        registry.resolve("")


@pytest.mark.parametrize("function", [lambda: 1, lambda a: 1, lambda a, b, c: 1])
def test_handlers_take_a_context_and_a_payload(function: Any) -> None:
    with pytest.raises(ValueError, match="context, payload"):
        Registry().add("chat", function)


@pytest.mark.fakeredis_only
async def test_typed_payloads_are_validated(make_worker: MakeWorker) -> None:
    registry = Registry()
    registry.add("chat", typed)
    handler = registry.resolve("chat")
    assert handler.parse({"text": "a", "n": 2}) == Prompt(text="a", n=2)
    with pytest.raises(InvalidPayload, match="text: Field required") as caught:
        handler.parse({"n": "x"})
    assert "n: " in str(caught.value)
    worker = make_worker(registry=registry)
    job_id = await worker.run_job(b"error", payload=b'{"text":5}')
    assert (await worker.error(job_id))["kind"] == "invalid_payload"
    job_id = await worker.run_job(payload=b'{"text":"a","n":2}')
    assert await worker.result(job_id) == ["a", "a"]


# -- WORKER_HANDLERS --------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module of a user's own and names it in WORKER_HANDLERS."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"handlers_of_{tmp_path.name.replace('-', '_')}"

    def write(source: str) -> Registry:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        monkeypatch.setenv("WORKER_HANDLERS", name)
        return build_registry(load_settings(WorkerSettings))

    yield write
    sys.modules.pop(name, None)


def test_user_handlers_replace_the_shipped_ones(module: Any) -> None:
    registry = module(
        """
        async def chat(context, payload): ...

        def register(registry):
            registry.add("chat", chat)
        """
    )
    assert registry.resolve("chat").function.__name__ == "chat"
    for task in Task:
        registry.resolve(task.value)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "register = 5",
        "import nonexistent_module",
        "def register(registry): registry.add('dance', print)",
        "def register(registry): registry.add('chat', lambda: 1)",
        "def register(",
    ],
    ids=["empty", "no-function", "import-error", "bad-task", "bad-handler", "syntax"],
)
def test_a_bad_module_is_a_settings_error(module: Any, source: str) -> None:
    with pytest.raises(SettingsError, match="WORKER_HANDLERS names 'handlers_of_"):
        module(source)


def test_a_module_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_HANDLERS", "no.such.module")
    with pytest.raises(SettingsError, match=r"WORKER_HANDLERS names 'no.such.module'"):
        build_registry(load_settings(WorkerSettings))
