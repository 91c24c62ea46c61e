"""Embedder that calls a model server: EMBED_URL, or MODEL_URL if one server does both."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import Final

from sluice.worker.features.embedding.types import (
    HEARTBEAT_FIELD,
    EmbeddingResult,
    NoEmbedder,
    OnDone,
    WrongDimensions,
)
from sluice.worker.features.model.circuit import TrialOutcome
from sluice.worker.features.model.client import ModelClient
from sluice.worker.features.model.errors import ModelUnavailable, NoModel
from sluice.worker.registry import Service, WorkerServices

log = logging.getLogger(__name__)

#: Texts per request.
BATCH_SIZE: Final = 32
#: Seconds until a server is asked again that computes no embeddings, and one that is down or busy.
REFUSED_CHECK_EVERY_S: Final = 60.0
DOWN_CHECK_EVERY_S: Final = 2.0


class ServerEmbedder(Service):
    """Normalises the server's vectors to length one.

    Starts and closes `client` if `own` is true.
    """

    def __init__(self, client: ModelClient, model: str = "", *, own: bool = False) -> None:
        self._client = client
        self._model = model
        self._own = own

    @property
    def name(self) -> str:
        """See `Embedder`. Empty until the server has first been reached."""
        return self._model or self._client.name

    @property
    def ready(self) -> bool:
        """See `Embedder`."""
        return True

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


class ProbedEmbedder(ServerEmbedder):
    """Uses the model server if it computes embeddings, which a trial request decides."""

    def __init__(self, client: ModelClient, model: str, missing: str) -> None:
        """`missing`: why there is no other embedder."""
        super().__init__(client, model)
        self._missing = missing
        self._serves = False
        #: Outcome of the last trial request.
        self._outcome: TrialOutcome | None = None
        self._asked_at = float("-inf")
        self._lock = asyncio.Lock()

    @property
    def ready(self) -> bool:
        """See `Embedder`. False until the server has answered a trial request."""
        return self._serves

    @property
    def name(self) -> str:
        """See `Embedder`."""
        return super().name if self._serves else ""

    async def run(self) -> None:
        """Ask the server until it computes an embedding: it may be down, or be restarted."""
        while not self._serves:
            try:
                await self.check()
                pause_s = REFUSED_CHECK_EVERY_S
            except (NoModel, ModelUnavailable):
                pause_s = DOWN_CHECK_EVERY_S
            except Exception:  # the next check may succeed
                log.exception("could not ask the model server for an embedding")
                pause_s = REFUSED_CHECK_EVERY_S
            await asyncio.sleep(0 if self._serves else pause_s)

    async def check(self) -> None:
        """Ask the server, unless it was asked a moment ago.

        Raises NoModel, or ModelUnavailable while the server is down or too busy to decide.
        """
        async with self._lock:
            is_known = self._outcome is not TrialOutcome.NO_ANSWER
            pause_s = (REFUSED_CHECK_EVERY_S if is_known else DOWN_CHECK_EVERY_S) / 2
            if not self._serves and time.monotonic() - self._asked_at >= pause_s:
                await self._ask()
            if self._outcome is TrialOutcome.NO_ANSWER:
                raise ModelUnavailable(
                    "the server at MODEL_URL has not answered a trial request for an embedding",
                    retry_after_s=DOWN_CHECK_EVERY_S,
                )

    async def _ask(self) -> None:
        self._outcome = await self._client.try_embedding(self._model)
        self._asked_at = time.monotonic()
        self._serves = self._outcome is TrialOutcome.ANSWERED
        if self._serves:
            log.info("the model server computes embeddings: EMBEDDER=auto uses %s", self.name)

    async def embed_all(
        self, texts: Sequence[str], dimensions: int | None = None, on_done: OnDone | None = None
    ) -> EmbeddingResult:
        """See `Embedder`. Raises ModelUnavailable while it is not known what the server does."""
        await self.check()
        if not self._serves:
            raise NoEmbedder(
                f"the server at MODEL_URL computes no embeddings; {self._missing}, or set "
                "EMBED_URL to an embedding server"
            )
        return await super().embed_all(texts, dimensions, on_done)


def _normalize(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(number * number for number in vector))
    if not length or abs(length - 1) < 1e-6:
        return vector
    return [number / length for number in vector]
