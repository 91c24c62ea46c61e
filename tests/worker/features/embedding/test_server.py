"""Vectors from a server: whose, with which key, and made one long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from common.aio import cancel
from common.errors import SettingsError
from common.settings.models_dir import MODELS_DIR_VARIABLE
from common.settings.worker import WorkerSettings
from tests.support.model_answers import Answer, body_answer, vector_of
from tests.support.model_server import ModelServer
from tests.worker.features.model.kit import FakeLimits
from worker.features.embedding.factory import NullEmbedder, choose_embedder
from worker.features.embedding.local import LocalEmbedder
from worker.features.embedding.server import BATCH_SIZE, ServerEmbedder
from worker.features.embedding.types import NoEmbedder, WrongDimensions
from worker.features.model.client import ModelClient
from worker.registry import WorkerServices

Opener = Callable[..., Any]


@asynccontextmanager
async def living(**given: Any) -> AsyncIterator[tuple[Any, WorkerServices]]:
    """What a worker with these settings embeds by, alive together with its model."""
    settings = WorkerSettings(**given)
    model = ModelClient(settings)
    embedder = choose_embedder(settings, model)
    house = WorkerServices(
        *(cast(Any, each) for each in (None, FakeLimits(), None, None, None, None))
    )
    services = (model, embedder)
    for service in services:
        await service.start(house)
    running = [asyncio.ensure_future(service.run()) for service in services]
    try:
        yield embedder, house
    finally:
        await cancel(*running)
        for service in services:
            await service.close()


@pytest.fixture
async def open_embedder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opener]:
    """Opens embedders where no model is installed."""
    monkeypatch.setenv(MODELS_DIR_VARIABLE, str(tmp_path / "models"))
    async with AsyncExitStack() as stack:

        async def open_one(**given: Any) -> tuple[Any, WorkerServices]:
            opening = living(sluice_data_dir=str(tmp_path), **given)
            return await stack.enter_async_context(opening)

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
    embedder, house = await open_embedder(embedder="server", model_url=chats.url)
    assert await embedder.embed(["a b", "c"]) == [vector_of("a b"), vector_of("c")]
    assert embedder.ready
    assert embedder.name == "scripted-1" == house.heartbeat_fields["embedder"]()
    made = await embedder.embed_all(["a b", "c"])
    assert (made.tokens, made.truncated) == (3, 0)


async def test_another_model_of_the_same_server(open_embedder: Opener, chats: ModelServer) -> None:
    embedder, house = await open_embedder(
        embedder="server", model_url=chats.url, embed_url=f"{chats.url}/", embed_name="small"
    )
    await embedder.embed(["a"])
    assert chats.requests[0].body["model"] == "small" == house.heartbeat_fields["embedder"]()


async def test_a_server_of_its_own(
    open_embedder: Opener, chats: ModelServer, embeds: ModelServer
) -> None:
    chats.api_key, embeds.api_key = "chat-secret", "embed-secret"
    embedder, house = await open_embedder(
        embedder="server", model_url=chats.url, model_api_key="chat-secret",
        embed_url=embeds.url, embed_api_key="embed-secret",
    )  # fmt: skip
    assert await embedder.embed(["a"]) == [vector_of("a")]
    assert embeds.requests[0].headers["authorization"] == "Bearer embed-secret"
    assert not chats.requests
    assert house.heartbeat_fields["embedder"]() == "embedder-1"
    # It is not the model that chats wait for.
    assert house.heartbeat_fields["model"]().name == "scripted-1"
    await embeds.stop()
    assert house.heartbeat_fields["model"]().state.value == "ready"


async def test_the_models_key_is_for_the_model_only(
    open_embedder: Opener, embeds: ModelServer
) -> None:
    embedder, _ = await open_embedder(model_api_key="chat-secret", embed_url=embeds.url)
    await embedder.embed(["a"])
    assert "authorization" not in embeds.requests[0].headers


async def test_many_texts_go_a_few_at_a_time(open_embedder: Opener, embeds: ModelServer) -> None:
    embedder, _ = await open_embedder(embed_url=embeds.url)
    texts = [f"text {number}" for number in range(2 * BATCH_SIZE + 5)]
    told: list[int] = []

    async def on_done(done: int) -> None:
        told.append(done)

    made = await embedder.embed_all(texts, None, on_done)
    assert made.vectors == [vector_of(text) for text in texts]
    assert made.tokens == 2 * len(texts)
    assert told == [BATCH_SIZE, 2 * BATCH_SIZE]
    assert [len(seen.body["input"]) for seen in embeds.requests] == [BATCH_SIZE, BATCH_SIZE, 5]
    assert await embedder.embed([]) == []


async def test_vectors_are_made_one_long(open_embedder: Opener, embeds: ModelServer) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return body_answer({"data": [{"index": 0, "embedding": [3.0, -4.0]}]})

    embeds.embeddings = answer
    embedder, _ = await open_embedder(embed_url=embeds.url)
    assert await embedder.embed(["a"]) == [[0.6, -0.8]]
    embeds.embeddings = lambda body: body_answer({"data": [{"index": 0, "embedding": [0, 0]}]})
    assert await embedder.embed(["a"]) == [[0.0, 0.0]]


async def test_a_server_may_shorten_or_not(open_embedder: Opener, embeds: ModelServer) -> None:
    embedder, _ = await open_embedder(embed_url=embeds.url)
    with pytest.raises(WrongDimensions, match="embedder-1 produces 32 dimensions, not 2"):
        await embedder.embed_all(["a"], 2)
    assert embeds.requests[0].body["dimensions"] == 2
    embeds.embeddings = lambda body: body_answer({"data": [{"index": 0, "embedding": [0.6, 0.8]}]})
    assert (await embedder.embed_all(["a"], 2)).vectors == [[0.6, 0.8]]


# -- who it is -----------------------------------------------------------------------------------


def chosen(tmp_path: Path, **given: Any) -> Any:
    settings = WorkerSettings(sluice_data_dir=str(tmp_path), **given)
    return choose_embedder(settings, ModelClient(settings))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a model would be installed."""
    monkeypatch.setenv(MODELS_DIR_VARIABLE, str(tmp_path))
    folder = tmp_path / "all-minilm-l6-v2"
    folder.mkdir()
    return folder


def install(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")


URL = "http://127.0.0.1:1"


def test_the_installed_one_goes_first(folder: Path, tmp_path: Path) -> None:
    install(folder)
    assert isinstance(chosen(tmp_path), LocalEmbedder)
    assert isinstance(chosen(tmp_path, embed_url=URL), LocalEmbedder)
    assert isinstance(chosen(tmp_path, embedder="minilm"), LocalEmbedder)
    assert isinstance(chosen(tmp_path, embedder="server", embed_url=URL), ServerEmbedder)
    assert isinstance(chosen(tmp_path, embedder="off", embed_url=URL), NullEmbedder)


async def test_where_nothing_is_installed(folder: Path, tmp_path: Path) -> None:
    assert isinstance(chosen(tmp_path, embed_url=URL), ServerEmbedder)
    # A server for chats need not make vectors.
    nobody = chosen(tmp_path, model_url=URL)
    assert isinstance(nobody, NullEmbedder)
    assert not nobody.ready
    assert nobody.name == ""
    for asking in (nobody.embed, nobody.embed_all):
        with pytest.raises(NoEmbedder, match="run `sluice model install`, or set EMBED_URL"):
            await asking(["a"])
    with pytest.raises(NoEmbedder, match="EMBEDDER=off"):
        await chosen(tmp_path, embedder="off").embed(["a"])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"embedder": "minilm"},
            r"EMBEDDER=minilm: there is no embedding model in .*; run `sluice",
        ),
        ({"embedder": "server"}, "EMBEDDER=server needs a server: set EMBED_URL, or MODEL_URL"),
    ],
)
def test_what_cannot_be_is_refused(
    folder: Path, tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(SettingsError, match=told):
        chosen(tmp_path, **given)


def test_damaged_weights_are_no_reason_to_stop_unless_they_are_wanted(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "model.safetensors").write_bytes(b"half")
    assert isinstance(chosen(tmp_path), NullEmbedder)
    with pytest.raises(SettingsError, match="is too short; run `sluice model install` again"):
        chosen(tmp_path, embedder="minilm")
