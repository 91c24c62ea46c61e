"""The model monitor: states and reporting; its semaphore and its circuit breaker."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from sluice.common.aio import cancel
from sluice.common.contracts.workers import FIRST_TOKEN_BOUNDS, ModelState
from sluice.worker.features.model import availability as module
from sluice.worker.features.model import circuit
from sluice.worker.features.model.availability import (
    DOWN_PROBE_EVERY_S,
    HELD_TASK_RETRY_S,
    ResizableSemaphore,
    display_name,
)
from sluice.worker.features.model.circuit import (
    FAILURE_THRESHOLD,
    LONGEST_PAUSE_S,
    CircuitBreaker,
)
from sluice.worker.features.model.client import ModelClient
from sluice.worker.features.model.errors import ModelUnavailable, NoModel
from sluice.worker.handlers import builtin
from sluice.worker.registry import Registry
from tests.support.model.answers import Answer
from tests.support.model.server import LOADING, MUTE, READY, Dialect, ModelServer
from tests.support.waiting import eventually
from tests.support.worker.model import MakeModel, ModelHarness, announce, settings_for
from tests.support.worker.timing import at_best_within


async def test_probing_llama_server(model: ModelHarness) -> None:
    assert (model.state, model.client.name) == (ModelState.READY, "scripted-1")
    assert model.limits.history == [(2, "")]
    assert model.limits.tasks == {"chat", "plan", "code"}
    reading = model.services.heartbeat_fields["model"]()
    assert (reading.state, reading.url, reading.slots) == ("ready", model.server.url, 2)


async def test_slots_may_be_configured_and_invalid_ones_are_ignored(
    server: ModelServer, make_model: MakeModel
) -> None:
    slots: Any
    for slots in (0, -1, "many", None, 5000):
        server.slots = slots
        assert (await make_model()).limits.history == [(1, "")], slots
    for dialect in Dialect:
        async with ModelServer(dialect=dialect, slots=4) as other:
            assert (await make_model(other, model_slots=3)).limits.history == [(3, "")]


async def test_a_proxy_of_the_environment_is_ignored(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await (await make_model()).ask("count to 1")).text == "1"


async def test_down_at_the_start_and_back_soon(server: ModelServer, make_model: MakeModel) -> None:
    await server.stop()
    model = await make_model()
    assert model.limits.slots == 0
    assert "refused" in model.limits.reason
    with pytest.raises(ModelUnavailable):
        await model.ask()
    began = asyncio.get_running_loop().time()
    await server.start()
    await eventually(lambda: model.limits.slots == 2)
    assert asyncio.get_running_loop().time() - began < 2
    assert DOWN_PROBE_EVERY_S + HELD_TASK_RETRY_S < 2, "the defaults, which the tests shorten"
    assert (await model.ask("count to 1")).text == "1"


async def test_loading_then_ready(server: ModelServer, make_model: MakeModel) -> None:
    server.state = LOADING
    model = await make_model()
    assert (model.state, model.limits.slots) == (ModelState.LOADING, 0)
    assert "Loading model" in model.limits.reason
    server.state = READY
    await model.is_in(ModelState.READY)
    assert model.limits.slots == 2


async def test_going_down_is_noticed_without_a_request(
    model: ModelHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READY_PROBE_EVERY_S", 0.05)
    model.client._monitor._wakeup.set()
    await model.server.stop()
    await model.is_in(ModelState.DOWN)
    assert model.limits.slots == 0
    await model.server.start()
    await model.is_in(ModelState.READY)


async def test_an_unresponsive_server_does_not_delay_the_start(
    server: ModelServer, make_model: MakeModel
) -> None:
    server.state = MUTE

    async def trial() -> float:
        began = time.monotonic()
        model = await make_model(model_connect_timeout_s=0.2)
        took_s = time.monotonic() - began
        assert (model.state, model.limits.slots) == (ModelState.DOWN, 0)
        return took_s

    await at_best_within(1.5, trial)


async def test_running_answers_override_failed_probes(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server too busy to answer a probe is not down while it answers requests."""
    monkeypatch.setattr(module, "READY_PROBE_EVERY_S", 0.02)
    gate = asyncio.Event()
    model = await make_model()
    _, asking, _ = await model.begin(Answer([{"content": "a"}, gate]))
    probes = len(model.server.paths)
    await asyncio.sleep(0.2)
    assert len(model.server.paths) == probes
    gate.set()
    await asking
    await eventually(lambda: len(model.server.paths) > probes)


async def test_tasks_with_user_handlers_do_not_wait(server: ModelServer, tmp_path: Path) -> None:
    for replaced, kept in (((), {"chat", "plan", "code"}), (("chat",), {"plan", "code"})):
        registry = Registry()
        builtin.register(registry, settings_for(server, tmp_path))
        for task in replaced:
            registry.add(task, lambda context, payload: payload)
        [model] = [each for each in registry.services if isinstance(each, ModelClient)]
        assert model._tasks() == kept


async def test_a_refused_key_is_reported(make_model: MakeModel) -> None:
    async def forbid(reply: Any, path: str) -> None:
        await reply.json({"error": {"message": "who are you?"}}, 401)

    async with ModelServer(dialect=Dialect.OLLAMA) as refusing:
        refusing._other_request = forbid  # type: ignore[method-assign]
        model = await make_model(refusing)
        assert model.state is ModelState.READY
        assert "MODEL_API_KEY" in model.client.reading().reason


async def test_a_model_that_is_served_late_and_moves(make_model: MakeModel, tmp_path: Path) -> None:
    async with ModelServer(slots=2) as old, ModelServer(slots=5) as new:
        model = await make_model(None)
        with pytest.raises(NoModel):
            await model.ask()
        announce(tmp_path, old.url)
        assert (await model.ask("count to 2")).text == "1 2"
        assert old.requests[0].body["model"] == model.client.name == "announced"
        await eventually(lambda: model.limits.slots == 2)
        await old.stop()
        announce(tmp_path, new.url)
        assert (await model.ask("count to 3")).text == "1 2 3"
        assert model.limits.slots == 5
        assert model.client.reading().url == new.url
    # Jobs wait while an announced server is gone.
    model = await make_model(None)
    assert model.limits.slots == 0
    with pytest.raises(ModelUnavailable):
        await model.ask()


async def test_changes_are_logged_once_with_a_remedy(
    make_model: MakeModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DOWN_PROBE_EVERY_S", 0.01)
    caplog.set_level(logging.INFO)
    model = await make_model()
    await model.server.stop()
    for _ in range(3):
        with pytest.raises(ModelUnavailable):
            await model.ask()
    await asyncio.sleep(0.2)
    await model.server.start()
    await model.is_in(ModelState.READY)
    lines = [
        r.getMessage() for r in caplog.records if r.name.startswith("sluice.worker.features.model")
    ]
    first, second, third = lines
    assert "ready" in first
    assert "sluice model serve" in second
    assert "MODEL_URL" in second
    assert "ready" in third
    assert not [r for r in caplog.records if r.name.startswith("http") and r.levelno < 30]


async def test_the_heartbeat(model: ModelHarness) -> None:
    await model.ask("count to 3")
    await model.client.embeddings(["a b", "c"])
    job, asking, _ = await model.begin(Answer([60.0]))
    reading = model.client.reading()
    assert (reading.busy, reading.answers, reading.failures) == (1, 1, 0)
    assert (reading.prompt_tokens, reading.completion_tokens) == (6, 3)
    assert reading.first_token is not None
    assert len(reading.first_token.counts) == len(FIRST_TOKEN_BOUNDS) + 1
    assert sum(reading.first_token.counts) == 1
    job.cancel()
    await asking
    model.client._monitor._set_state(ModelState.DOWN, "x" * 5000)
    assert len(model.client.reading().reason) == 1000


def test_names_of_models() -> None:
    for model, shown in (
        ("llama3.2:3b", "llama3.2:3b"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("/srv/models/Small-Q4.gguf", "Small-Q4"),
        ("C:\\models\\Small.GGUF", "Small"),
        ("a\nb" + "x" * 500, "ab" + "x" * 198),
        ("", ""),
    ):
        assert display_name(model) == shown


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def entering(semaphore: ResizableSemaphore, number: int) -> list[asyncio.Task[None]]:
    """Tasks that enter the semaphore, in this order; those that are done are inside."""
    tasks = [asyncio.ensure_future(semaphore.__aenter__()) for _ in range(number)]
    await settle()
    return tasks


async def leave(semaphore: ResizableSemaphore) -> None:
    await semaphore.__aexit__(None, None, None)
    await settle()


def inside(tasks: list[asyncio.Task[None]]) -> list[bool]:
    return [task.done() for task in tasks]


async def test_waiters_enter_in_order() -> None:
    semaphore = ResizableSemaphore(2)
    tasks = await entering(semaphore, 4)
    assert inside(tasks) == [True, True, False, False]
    assert (semaphore.busy, semaphore.waiting) == (2, 2)
    await leave(semaphore)
    assert inside(tasks) == [True, True, True, False]
    for _ in range(3):
        await leave(semaphore)
    assert (semaphore.busy, semaphore.waiting) == (0, 0)


async def test_the_size_can_grow_and_shrink() -> None:
    semaphore = ResizableSemaphore(1)
    tasks = await entering(semaphore, 4)
    semaphore.resize(3)
    await settle()
    assert inside(tasks) == [True, True, True, False]
    semaphore.resize(1)
    await leave(semaphore)
    await leave(semaphore)
    assert not tasks[3].done()
    await leave(semaphore)
    assert tasks[3].done()


@pytest.mark.parametrize("woken", [False, True])
async def test_a_canceled_waiter_takes_no_slot(woken: bool) -> None:
    semaphore = ResizableSemaphore(1)
    _, second, third = await entering(semaphore, 3)
    if woken:
        await semaphore.__aexit__(None, None, None)  # wakes the second, which has not run yet
        second.cancel()
    else:
        await cancel(second)
        assert semaphore.waiting == 1
        await leave(semaphore)
    await settle()
    assert (third.done(), semaphore.busy) == (True, 1)
    await leave(semaphore)
    assert semaphore.busy == 0


def test_a_breaker() -> None:
    now = [0.0]
    breaker = CircuitBreaker(lambda: now[0])
    for _ in range(FAILURE_THRESHOLD - 1):
        breaker.record_failure("oops")
    assert not breaker.is_open
    breaker.record_success()
    for _ in range(FAILURE_THRESHOLD):
        assert not breaker.is_open
        breaker.record_failure("oops")
    assert (breaker.is_open, breaker.on_trial, breaker.reason) == (True, False, "oops")
    breaker.record_failure("late")  # was in progress
    now[0] += circuit.FIRST_PAUSE_S
    assert (breaker.is_open, breaker.on_trial) == (False, True)
    breaker.record_failure("again")
    assert breaker.is_open
    now[0] += circuit.FIRST_PAUSE_S
    assert breaker.is_open, "twice as long"
    now[0] += circuit.FIRST_PAUSE_S
    assert breaker.on_trial
    for _ in range(20):  # but never longer than this
        breaker.record_failure("oops")
        now[0] += LONGEST_PAUSE_S
        assert breaker.on_trial
    breaker.record_success()
    assert (breaker.is_open, breaker.on_trial, breaker.reason) == (False, False, "")
