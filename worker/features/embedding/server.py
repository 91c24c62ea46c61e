"""Embedder that calls a model server: EMBED_URL, or MODEL_URL if one server does both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from sluice.worker.features.embedding.types import (
    HEARTBEAT_FIELD,
    EmbeddingResult,
    OnDone,
    WrongDimensions,
)
from sluice.worker.features.model.client import ModelClient
from sluice.worker.registry import Service, WorkerServices

#: Texts per request.
BATCH_SIZE: Final = 32


class ServerEmbedder(Service):
    """Normalises the server's vectors to length one.

    Starts and closes `client` if `own` is true.
    """

    ready = True

    def __init__(self, client: ModelClient, model: str = "", *, own: bool = False) -> None:
        self._client = client
        self._model = model
        self._own = own

    @property
    def name(self) -> str:
        """See `Embedder`. Empty until the server has first been reached."""
        return self._model or self._client.name

    async def start(self, services: WorkerServices) -> None:
        services.heartbeat_fields[HEARTBEAT_FIELD] = lambda: self.name
        if self._own:
            await self._client.start(services)

    async def run(self) -> None:
        if self._own:
            await self._client.run()

    async def close(self) -> None:
        if self._own:
            await self._client.close()

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return (await self.embed_all(texts)).vectors

    async def embed_all(
        self, texts: Sequence[str], dimensions: int | None = None, on_done: OnDone | None = None
    ) -> EmbeddingResult:
        """See `Embedder`. `truncated` is always 0: servers do not report it."""
        vectors: list[list[float]] = []
        tokens = 0
        while len(vectors) < len(texts):
            some = texts[len(vectors) : len(vectors) + BATCH_SIZE]
            found, usage = await self._client.embeddings(
                some, model=self._model, dimensions=dimensions
            )
            if dimensions is not None and len(found[0]) != dimensions:
                raise WrongDimensions(self.name, dimensions, len(found[0]))
            vectors += map(_normalize, found)
            tokens += usage.prompt_tokens
            if on_done is not None and len(vectors) < len(texts):
                await on_done(len(vectors))
        return EmbeddingResult(vectors, tokens)


def _normalize(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(number * number for number in vector))
    if not length or abs(length - 1) < 1e-6:
        return vector
    return [number / length for number in vector]
