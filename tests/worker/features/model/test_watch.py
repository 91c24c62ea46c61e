"""The model monitor: states, how soon they are noticed, and reporting."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from common.contracts.workers import FIRST_TOKEN_BOUNDS, ModelState
from tests.conftest import eventually
from tests.support.model_answers import Answer
from tests.support.model_server import LOADING, MUTE, READY, Dialect, ModelServer
from tests.worker.features.model.kit import ClientRig, FakeJob, open_client, settings_for
from worker.features.model import availability as module
from worker.features.model.availability import display_name
from worker.features.model.client import ModelClient
from worker.features.model.errors import ModelUnavailable, NoModel
from worker.handlers import builtin
from worker.registry import Registry


async def test_probing_llama_server(server: ModelServer, client_rig: ClientRig) -> None:
    assert (client_rig.client.state, client_rig.client.name) == (ModelState.READY, "scripted-1")
    assert client_rig.limits.history == [(2, "")]
    assert client_rig.limits.tasks == {"chat", "plan", "code"}
    reading = client_rig.services.heartbeat_fields["model"]()
    assert (reading.state, reading.url, reading.slots) == ("ready", server.url, 2)


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_configured_slots_have_precedence(dialect: Dialect, tmp_path: Path) -> None:
    async with ModelServer(dialect=dialect, slots=4) as server:
        settings = settings_for(server, tmp_path, model_slots=3)
        async with open_client(settings) as client_rig:
            assert client_rig.limits.history == [(3, "")]


@pytest.mark.parametrize("slots", [0, -1, "many", None, 5000])
async def test_invalid_slots_are_ignored(server: ModelServer, tmp_path: Path, slots: int) -> None:
    server.slots = slots
    async with open_client(settings_for(server, tmp_path)) as client_rig:
        assert client_rig.limits.history == [(1, "")]


@pytest.mark.parametrize("prefix", ["", "/llama"])
@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
async def test_urls_in_every_form(tmp_path: Path, prefix: str, ending: str) -> None:
    async with ModelServer(prefix=prefix) as server:
        settings = settings_for(None, tmp_path, model_url=server.url + ending)
        async with open_client(settings) as client_rig:
            assert client_rig.limits.history == [(2, "")]
            assert (await client_rig.ask("count to 2")).text == "1 2"


async def test_a_proxy_of_the_environment_is_ignored(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with open_client(settings_for(server, tmp_path)) as client_rig:
        assert (await client_rig.ask("count to 1")).text == "1"


async def test_down_at_the_start_and_back_soon(tmp_path: Path) -> None:
    server = ModelServer()
    await server.start()
    await server.stop()
    async with open_client(settings_for(server, tmp_path)) as client_rig:
        assert client_rig.limits.slots == 0
        assert "refused" in client_rig.limits.history[-1][1]
        with pytest.raises(ModelUnavailable):
            await client_rig.ask()
        began = asyncio.get_running_loop().time()
        async with server:
            await eventually(lambda: client_rig.limits.slots == 2)
            assert asyncio.get_running_loop().time() - began < 2
            assert (await client_rig.ask("count to 1")).text == "1"


async def test_going_down_is_noticed_without_a_request(
    server: ModelServer, client_rig: ClientRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READY_PROBE_EVERY_S", 0.05)
    client_rig.client._monitor._wakeup.set()
    await server.stop()
    await client_rig.is_in(ModelState.DOWN)
    assert client_rig.limits.slots == 0
    await server.start()
    await client_rig.is_in(ModelState.READY)


async def test_loading_then_ready(tmp_path: Path) -> None:
    async with ModelServer() as server:
        server.state = LOADING
        async with open_client(settings_for(server, tmp_path)) as client_rig:
            assert client_rig.client.state is ModelState.LOADING
            assert client_rig.limits.slots == 0
            assert "Loading model" in client_rig.limits.history[-1][1]
            server.state = READY
            await client_rig.is_in(ModelState.READY)
            assert client_rig.limits.slots == 2


async def test_an_unresponsive_server_does_not_delay_the_start(tmp_path: Path) -> None:
    async with ModelServer() as server:
        server.state = MUTE
        settings = settings_for(server, tmp_path, model_connect_timeout_s=0.2)
        best_s = float("inf")
        for _ in range(3):  # the best counts, because the machine may be busy
            began = asyncio.get_running_loop().time()
            async with open_client(settings) as client_rig:
                best_s = min(best_s, asyncio.get_running_loop().time() - began)
                assert (client_rig.client.state, client_rig.limits.slots) == (ModelState.DOWN, 0)
            if best_s < 1.5:
                break
        assert best_s < 1.5


async def test_running_answers_override_failed_probes(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server too busy to answer a probe is not down while it answers requests."""
    monkeypatch.setattr(module, "READY_PROBE_EVERY_S", 0.02)
    gate = asyncio.Event()
    server.add_answers(Answer([{"content": "a"}, gate]))
    async with open_client(settings_for(server, tmp_path)) as client_rig:
        asking = asyncio.ensure_future(client_rig.ask())
        await server.wait_for_request(1)
        probes = len(server.paths)
        await asyncio.sleep(0.2)
        assert len(server.paths) == probes
        gate.set()
        await asking
        await eventually(lambda: len(server.paths) > probes)


async def test_tasks_with_user_handlers_are_not_held_back(
    server: ModelServer, tmp_path: Path
) -> None:
    settings = settings_for(server, tmp_path)
    for replaced, kept in (((), {"chat", "plan", "code"}), (("chat",), {"plan", "code"})):
        registry = Registry()
        builtin.register(registry, settings)
        for task in replaced:
            registry.add(task, lambda context, payload: payload)
        [model] = [each for each in registry.services if isinstance(each, ModelClient)]
        assert model._tasks() == kept


async def test_a_refused_key_is_reported(server: ModelServer, tmp_path: Path) -> None:
    async with ModelServer(dialect=Dialect.OLLAMA) as refusing:
        refusing._other_request = _forbid  # type: ignore[method-assign,assignment]
        async with open_client(settings_for(refusing, tmp_path)) as client_rig:
            assert client_rig.client.state is ModelState.READY
            assert "MODEL_API_KEY" in client_rig.client.reading().reason


async def _forbid(reply: object, path: str) -> None:
    await reply.json({"error": {"message": "who are you?"}}, 401)  # type: ignore[attr-defined]


# -- the announcement of `sluice model serve` ------------------------------------------------------


def announce(directory: Path, server: ModelServer) -> None:
    reported = {"url": server.url, "model": "announced", "pid": 1}
    (directory / "fresh").write_text(json.dumps(reported))
    (directory / "fresh").replace(directory / "model.json")


async def test_a_model_that_is_served_later(tmp_path: Path) -> None:
    async with open_client(settings_for(None, tmp_path)) as client_rig, ModelServer() as server:
        with pytest.raises(NoModel):
            await client_rig.ask()
        announce(tmp_path, server)
        assert (await client_rig.ask("count to 2")).text == "1 2"
        assert server.requests[0].body["model"] == client_rig.client.name == "announced"
        await eventually(lambda: client_rig.limits.slots == 2)


async def test_a_model_that_moves(tmp_path: Path) -> None:
    async with ModelServer(slots=2) as old, ModelServer(slots=5) as new:
        announce(tmp_path, old)
        async with open_client(settings_for(None, tmp_path)) as client_rig:
            await client_rig.ask("count to 1")
            await old.stop()
            announce(tmp_path, new)
            assert (await client_rig.ask("count to 3")).text == "1 2 3"
            assert client_rig.limits.slots == 5
            assert client_rig.client.reading().url == new.url


async def test_jobs_wait_while_an_announced_server_is_gone(tmp_path: Path) -> None:
    async with ModelServer() as server:
        announce(tmp_path, server)
    async with open_client(settings_for(None, tmp_path)) as client_rig:
        assert client_rig.limits.slots == 0
        with pytest.raises(ModelUnavailable):
            await client_rig.ask()


# -- reporting ------------------------------------------------------------------------------------


async def test_changes_are_logged_once_with_a_remedy(
    server: ModelServer, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "DOWN_PROBE_EVERY_S", 0.01)
    caplog.set_level(logging.INFO)
    async with open_client(settings_for(server, tmp_path)) as client_rig:
        await server.stop()
        for _ in range(3):
            with pytest.raises(ModelUnavailable):
                await client_rig.ask()
        await asyncio.sleep(0.2)
        await server.start()
        await client_rig.is_in(ModelState.READY)
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("worker.features.model")]
    assert len(lines) == 3
    assert "ready" in lines[0]
    assert "sluice model serve" in lines[1]
    assert "MODEL_URL" in lines[1]
    assert "ready" in lines[2]
    assert not [r for r in caplog.records if r.name.startswith("http") and r.levelno < 30]


async def test_the_heartbeat(server: ModelServer, client_rig: ClientRig) -> None:
    await client_rig.ask("count to 3")
    await client_rig.client.embeddings(["a b", "c"])
    job = FakeJob()
    server.add_answers(Answer([60.0]))
    asking = asyncio.ensure_future(client_rig.ask(job=job))
    await server.wait_for_request(3)
    reading = client_rig.client.reading()
    assert (reading.busy, reading.answers, reading.failures) == (1, 1, 0)
    assert (reading.prompt_tokens, reading.completion_tokens) == (6, 3)
    assert reading.first_token is not None
    assert len(reading.first_token.counts) == len(FIRST_TOKEN_BOUNDS) + 1
    assert sum(reading.first_token.counts) == 1
    job.cancel()
    await asking


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("llama3.2:3b", "llama3.2:3b"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("/srv/models/Small-Q4.gguf", "Small-Q4"),
        ("C:\\models\\Small.GGUF", "Small"),
        ("a\nb" + "x" * 500, "ab" + "x" * 198),
        ("", ""),
    ],
)
def test_names_of_models(model: str, shown: str) -> None:
    assert display_name(model) == shown
