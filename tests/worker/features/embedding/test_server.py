"""The server embedder: which server and key it uses, and normalisation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sluice.common.aio import cancel
from sluice.common.errors import SettingsError
from sluice.common.settings.models_dir import MODELS_DIR_VARIABLE
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.features.embedding.factory import NullEmbedder, choose_embedder
from sluice.worker.features.embedding.local import LocalEmbedder
from sluice.worker.features.embedding.server import BATCH_SIZE, ProbedEmbedder, ServerEmbedder
from sluice.worker.features.embedding.types import NoEmbedder, WrongDimensions
from sluice.worker.features.model.client import ModelClient
from sluice.worker.features.model.errors import ModelUnavailable
from sluice.worker.registry import WorkerServices
from tests.support.model.answers import Answer, body_answer, error_answer, vector_of
from tests.support.model.server import ModelServer
from tests.support.waiting import eventually
from tests.support.worker.model import fake_services

Opener = Callable[..., Any]


@pytest.fixture
async def open_embedder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opener]:
    """Opens embedders without an installed model, with the services of their workers."""
    monkeypatch.setenv(MODELS_DIR_VARIABLE, str(tmp_path / "models"))
    async with AsyncExitStack() as stack:

        async def open_one(**given: Any) -> tuple[Any, WorkerServices]:
            settings = WorkerSettings(sluice_data_dir=str(tmp_path), **given)
            model = ModelClient(settings)
            embedder, services = choose_embedder(settings, model), fake_services()
            for part in (model, embedder):
                await part.start(services)
                stack.push_async_callback(part.close)
                stack.push_async_callback(cancel, asyncio.ensure_future(part.run()))
            return embedder, services

        yield open_one


@pytest.fixture
async def chats() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def embeds() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        server.model = "embedder-1"
        yield server


async def test_the_model_server_does_both(open_embedder: Opener, chats: ModelServer) -> None:
    embedder, services = await open_embedder(embedder="server", model_url=chats.url)
    assert await embedder.embed(["a b", "c"]) == [vector_of("a b"), vector_of("c")]
    assert embedder.ready
    assert embedder.name == "scripted-1" == services.heartbeat_fields["embedder"]()
    made = await embedder.embed_all(["a b", "c"])
    assert (made.tokens, made.truncated) == (3, 0)


async def test_another_model_of_the_same_server(open_embedder: Opener, chats: ModelServer) -> None:
    embedder, services = await open_embedder(
        embedder="server", model_url=chats.url, embed_url=f"{chats.url}/", embed_name="small"
    )
    await embedder.embed(["a"])
    assert chats.requests[0].body["model"] == "small" == services.heartbeat_fields["embedder"]()


async def test_a_separate_embedding_server(
    open_embedder: Opener, chats: ModelServer, embeds: ModelServer
) -> None:
    chats.api_key, embeds.api_key = "chat-secret", "embed-secret"
    embedder, services = await open_embedder(
        embedder="server", model_url=chats.url, model_api_key="chat-secret",
        embed_url=embeds.url, embed_api_key="embed-secret",
    )  # fmt: skip
    assert await embedder.embed(["a"]) == [vector_of("a")]
    assert embeds.requests[0].headers["authorization"] == "Bearer embed-secret"
    assert not chats.requests
    assert services.heartbeat_fields["embedder"]() == "embedder-1"
    # Chats do not wait for the embedding server.
    assert services.heartbeat_fields["model"]().name == "scripted-1"
    await embeds.stop()
    assert services.heartbeat_fields["model"]().state.value == "ready"


async def test_the_key_of_the_model_is_not_sent_elsewhere(
    open_embedder: Opener, embeds: ModelServer
) -> None:
    embedder, _ = await open_embedder(model_api_key="chat-secret", embed_url=embeds.url)
    await embedder.embed(["a"])
    assert "authorization" not in embeds.requests[0].headers


async def test_many_texts_go_a_few_at_a_time(open_embedder: Opener, embeds: ModelServer) -> None:
    embedder, _ = await open_embedder(embed_url=embeds.url)
    texts = [f"text {number}" for number in range(2 * BATCH_SIZE + 5)]
    reported: list[int] = []

    async def on_done(done: int) -> None:
        reported.append(done)

    made = await embedder.embed_all(texts, None, on_done)
    assert made.vectors == [vector_of(text) for text in texts]
    assert made.tokens == 2 * len(texts)
    assert reported == [BATCH_SIZE, 2 * BATCH_SIZE]
    assert [len(seen.body["input"]) for seen in embeds.requests] == [BATCH_SIZE, BATCH_SIZE, 5]
    assert await embedder.embed([]) == []


def answer_with(*vector: float) -> Callable[[dict[str, Any]], Answer]:
    return lambda body: body_answer({"data": [{"index": 0, "embedding": vector}]})


async def test_vectors_are_normalised(open_embedder: Opener, embeds: ModelServer) -> None:
    embedder, _ = await open_embedder(embed_url=embeds.url)
    for vector, normalised in (((3.0, -4.0), [0.6, -0.8]), ((0, 0), [0.0, 0.0])):
        embeds.embeddings = answer_with(*vector)
        assert await embedder.embed(["a"]) == [normalised]


async def test_a_server_may_shorten_or_not(open_embedder: Opener, embeds: ModelServer) -> None:
    embedder, _ = await open_embedder(embed_url=embeds.url)
    with pytest.raises(WrongDimensions, match="embedder-1 produces 32 dimensions, not 2"):
        await embedder.embed_all(["a"], 2)
    assert embeds.requests[0].body["dimensions"] == 2
    embeds.embeddings = answer_with(0.6, 0.8)
    assert (await embedder.embed_all(["a"], 2)).vectors == [[0.6, 0.8]]


# -- the model server, if nothing else is configured ---------------------------------------------


async def test_a_model_server_with_embeddings_is_used(
    open_embedder: Opener, chats: ModelServer
) -> None:
    embedder, services = await open_embedder(model_url=chats.url)
    await eventually(lambda: embedder.ready)
    assert embedder.name == "scripted-1" == services.heartbeat_fields["embedder"]()
    assert await embedder.embed(["a b"]) == [vector_of("a b")]
    asked = [request.body["input"] for request in chats.requests]
    assert asked == [["Hi"], ["a b"]]


async def test_the_first_job_waits_for_the_decision(
    tmp_path: Path, chats: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the service has not begun to run, or asks at the same time."""
    monkeypatch.setenv(MODELS_DIR_VARIABLE, str(tmp_path / "models"))
    embedder = chosen(tmp_path, model_url=chats.url, embed_name="small")
    assert (embedder.ready, embedder.name) == (False, "")
    found = await asyncio.gather(*(embedder.embed(["a"]) for _ in range(3)))
    assert found == [[vector_of("a")]] * 3
    assert embedder.ready
    assert [each.body["input"] for each in chats.requests].count(["Hi"]) == 1
    assert {each.body["model"] for each in chats.requests} == {"small"} == {embedder.name}
    await embedder._client.close()


@pytest.mark.parametrize(
    "answer",
    [error_answer(501, "start it with --embeddings"), error_answer(404), error_answer(500),
     body_answer(b"<html>"), body_answer({"data": [{"index": 0, "embedding": [[1.0]]}]})],
    ids=["501", "404", "500", "garbage", "a vector for each token"],
)  # fmt: skip
async def test_a_model_server_without_embeddings_is_not_used(
    open_embedder: Opener, chats: ModelServer, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats.embeddings = lambda body: answer
    embedder, services = await open_embedder(model_url=chats.url)
    for _ in range(5):
        with pytest.raises(NoEmbedder, match=r"MODEL_URL computes no embeddings; .* EMBED_URL"):
            await embedder.embed(["a"])
    assert (embedder.ready, services.heartbeat_fields["embedder"]()) == (False, "")
    assert len(chats.requests) == 1
    # Chats do not suffer from it.
    assert services.heartbeat_fields["model"]().state.value == "ready"
    assert services.heartbeat_fields["model"]().failures == 0
    # It is restarted with embeddings, and asked again after a while.
    chats.embeddings = None
    monkeypatch.setattr("sluice.worker.features.embedding.server.REFUSED_CHECK_EVERY_S", 0.0)
    assert await embedder.embed(["a"]) == [vector_of("a")]
    assert embedder.ready


async def test_while_the_model_server_is_down_nothing_is_decided(
    open_embedder: Opener, chats: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.features.embedding.server.DOWN_CHECK_EVERY_S", 0.05)
    await chats.stop()
    embedder, _ = await open_embedder(model_url=chats.url)
    with pytest.raises(ModelUnavailable):
        await embedder.embed(["a"])
    assert not embedder.ready
    await chats.start()
    await eventually(lambda: embedder.ready)


@pytest.mark.parametrize("status", [429, 503])
async def test_while_the_model_server_is_busy_nothing_is_decided(
    open_embedder: Opener, chats: ModelServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    chats.embeddings = lambda body: error_answer(status, "no slot is available")
    embedder, _ = await open_embedder(model_url=chats.url)
    for _ in range(3):
        with pytest.raises(ModelUnavailable, match="has not answered a trial request") as raised:
            await embedder.embed(["a"])
    assert raised.value.retry_after_s
    assert len(chats.requests) == 1
    chats.embeddings = None
    monkeypatch.setattr("sluice.worker.features.embedding.server.DOWN_CHECK_EVERY_S", 0.0)
    assert await embedder.embed(["a"]) == [vector_of("a")]


async def test_a_slow_answer_to_the_trial_decides_nothing(
    open_embedder: Opener, chats: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.features.model.circuit.TIMEOUT_S", 0.0)
    embedder, _ = await open_embedder(model_url=chats.url)
    with pytest.raises(ModelUnavailable, match="has not answered a trial request"):
        await embedder.embed(["a"])


# -- choice of the embedder ----------------------------------------------------------------------


def chosen(tmp_path: Path, **given: Any) -> Any:
    settings = WorkerSettings(sluice_data_dir=str(tmp_path), **given)
    return choose_embedder(settings, ModelClient(settings))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory in which a model would be installed."""
    monkeypatch.setenv(MODELS_DIR_VARIABLE, str(tmp_path))
    folder = tmp_path / "all-minilm-l6-v2"
    folder.mkdir()
    return folder


URL = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("installed", "given", "kind"),
    [
        (True, {}, LocalEmbedder),
        (True, {"embed_url": URL}, LocalEmbedder),
        (True, {"embedder": "minilm"}, LocalEmbedder),
        (True, {"embedder": "server", "embed_url": URL}, ServerEmbedder),
        (True, {"embedder": "off", "embed_url": URL}, NullEmbedder),
        (False, {"embed_url": URL}, ServerEmbedder),
        (False, {"model_url": URL}, ProbedEmbedder),
        (False, {"model_url": URL, "embed_url": f"{URL}0"}, ServerEmbedder),
        (False, {}, NullEmbedder),
    ],
)
def test_the_installed_model_has_precedence(
    folder: Path, tmp_path: Path, installed: bool, given: dict[str, str], kind: type
) -> None:
    if installed:
        (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    assert type(chosen(tmp_path, **given)) is kind


async def test_without_an_installed_model(folder: Path, tmp_path: Path) -> None:
    unavailable = chosen(tmp_path)
    assert (unavailable.ready, unavailable.name) == (False, "")
    for asking in (unavailable.embed, unavailable.embed_all):
        with pytest.raises(NoEmbedder, match="run `sluice model install`, or set EMBED_URL"):
            await asking(["a"])
    with pytest.raises(NoEmbedder, match="EMBEDDER=off"):
        await chosen(tmp_path, embedder="off").embed(["a"])


@pytest.mark.parametrize(
    ("embedder", "reported"),
    [
        ("minilm", r"EMBEDDER=minilm: there is no embedding model in .*; run `sluice"),
        ("server", "EMBEDDER=server needs a server: set EMBED_URL, or MODEL_URL"),
    ],
)
def test_unavailable_embedders_are_refused(
    folder: Path, tmp_path: Path, embedder: str, reported: str
) -> None:
    with pytest.raises(SettingsError, match=reported):
        chosen(tmp_path, embedder=embedder)


def test_damaged_weights_fail_start_up_only_if_configured(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"half")
    assert isinstance(chosen(tmp_path), NullEmbedder)
    with pytest.raises(SettingsError, match="is too short; run `sluice model install` again"):
        chosen(tmp_path, embedder="minilm")
