"""Embedder that runs all-MiniLM-L6-v2 in this process, as installed by `sluice model install`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.common.errors import SettingsError
from sluice.worker.features.embedding.factory import (
    DIMENSIONS,
    INSTALL_HINT,
    MAX_TOKENS,
    MODEL_NAME,
    NUMPY_MISSING,
)
from sluice.worker.features.embedding.thread import (
    EmbeddingModel,
    EmbeddingRequest,
    EmbeddingThread,
)
from sluice.worker.features.embedding.types import (
    HEARTBEAT_FIELD,
    DamagedModel,
    EmbeddingResult,
    NoEmbedder,
    OnDone,
    WrongDimensions,
)
from sluice.worker.features.embedding.wordpiece import EncodedText, WordPiece
from sluice.worker.registry import Service, WorkerServices

if TYPE_CHECKING:
    from sluice.worker.features.embedding.minilm import MiniLM

log = logging.getLogger(__name__)

#: Requests queued for the thread; further requests wait for the semaphore.
MOST_QUEUED: Final = 32
#: Decimal places of a vector: the precision of float32, at half the JSON size of float64.
VECTOR_DIGITS: Final = 7


class LocalEmbedder(Service):
    """Loads the model at first use, or at start-up if `eager`."""

    name = MODEL_NAME
    ready = True

    def __init__(self, folder: Path, *, eager: bool = False) -> None:
        self._folder = folder
        self._eager = eager
        self._thread = EmbeddingThread(self._load)
        self._semaphore = asyncio.Semaphore(MOST_QUEUED)

    async def start(self, services: WorkerServices) -> None:
        """Load the model now if EMBEDDER names it explicitly."""
        services.heartbeat_fields[HEARTBEAT_FIELD] = lambda: self.name
        if self._eager:
            try:
                await self.embed([MODEL_NAME])
            except NoEmbedder as error:
                raise SettingsError(f"EMBEDDER=minilm: {error}") from None

    async def close(self) -> None:
        """Wait for the current batch to end."""
        await asyncio.to_thread(self._thread.close)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return (await self.embed_all(texts)).vectors

    async def embed_all(
        self, texts: Sequence[str], dimensions: int | None = None, on_done: OnDone | None = None
    ) -> EmbeddingResult:
        """See `Embedder`. After a cancellation only the current batch is completed."""
        if dimensions is not None and dimensions != DIMENSIONS:
            raise WrongDimensions(self.name, dimensions, DIMENSIONS)
        if not texts:
            return EmbeddingResult()
        async with self._semaphore:
            work = EmbeddingRequest(texts)
            self._thread.submit(work)
            try:
                while await work.wait_for_batch():
                    if on_done is not None:
                        await on_done(work.done)
            finally:
                work.abandoned = True
        return work.result

    def _load(self) -> EmbeddingModel:
        started = time.monotonic()
        try:
            from sluice.worker.features.embedding.minilm import MiniLM

            loaded = _LoadedModel(WordPiece.load(self._folder), MiniLM(self._folder))
        except ImportError:
            raise NoEmbedder(NUMPY_MISSING) from None
        except DamagedModel as error:
            raise NoEmbedder(f"{error}; {INSTALL_HINT} again") from None
        log.info("%s loaded in %.2f s", self.name, time.monotonic() - started)
        return loaded


class _LoadedModel:
    """Tokenizer and model."""

    def __init__(self, words: WordPiece, model: MiniLM) -> None:
        self._words = words
        self._model = model

    def encode(self, text: str) -> EncodedText:
        return self._words.encode(text, MAX_TOKENS)

    def embed(self, batch: Sequence[Sequence[int]]) -> list[list[float]]:
        rows: list[list[float]] = (
            self._model.embed(batch).astype(float).round(VECTOR_DIGITS).tolist()
        )
        return rows
