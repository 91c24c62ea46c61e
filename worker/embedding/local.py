"""The embedder that needs no server: all-MiniLM-L6-v2 as `sluice model install` leaves it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from common.errors import SettingsError
from worker.embedding.installed import DIMENSIONS, INSTALL, MAX_TOKENS, NAME, NEED_NUMPY
from worker.embedding.thread import EmbeddingThread, Model, Work
from worker.embedding.types import (
    TELLING,
    DamagedModel,
    Embedded,
    NoEmbedder,
    OnDone,
    WrongDimensions,
)
from worker.embedding.wordpiece import Tokens, WordPiece
from worker.services import House, Service

if TYPE_CHECKING:
    from worker.embedding.minilm import MiniLM

log = logging.getLogger(__name__)

#: Requests that may wait for the thread; others wait for a place.
MOST_WAITING: Final = 32
#: Digits after the point: as many as 32 bits tell, and half as long in JSON.
DIGITS: Final = 7


class LocalEmbedder(Service):
    """Loads the model at the first use, or at the start where it is `eager`."""

    name = NAME
    ready = True

    def __init__(self, folder: Path, *, eager: bool = False) -> None:
        self._folder = folder
        self._eager = eager
        self._thread = EmbeddingThread(self._load)
        self._places = asyncio.Semaphore(MOST_WAITING)

    async def start(self, house: House) -> None:
        """Load the model now, if it is wanted for sure."""
        house.telling[TELLING] = lambda: self.name
        if self._eager:
            try:
                await self.embed([NAME])
            except NoEmbedder as error:
                raise SettingsError(f"EMBEDDER=minilm: {error}") from None

    async def close(self) -> None:
        """Let the batch under way end."""
        await asyncio.to_thread(self._thread.close)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """See `Embedder`."""
        return (await self.embed_all(texts)).vectors

    async def embed_all(
        self, texts: Sequence[str], dimensions: int | None = None, on_done: OnDone | None = None
    ) -> Embedded:
        """See `Embedder`. Who stops waiting costs no more than the batch under way."""
        if dimensions is not None and dimensions != DIMENSIONS:
            raise WrongDimensions(self.name, dimensions, DIMENSIONS)
        if not texts:
            return Embedded()
        async with self._places:
            work = Work(texts)
            self._thread.put(work)
            try:
                while await work.news():
                    if on_done is not None:
                        await on_done(work.done)
            finally:
                work.abandoned = True
        return work.result

    def _load(self) -> Model:
        started = time.monotonic()
        try:
            from worker.embedding.minilm import MiniLM

            loaded = _Loaded(WordPiece.load(self._folder), MiniLM(self._folder))
        except ImportError:
            raise NoEmbedder(NEED_NUMPY) from None
        except DamagedModel as error:
            raise NoEmbedder(f"{error}; {INSTALL} again") from None
        log.info("%s loaded in %.2f s", self.name, time.monotonic() - started)
        return loaded


class _Loaded:
    """Words to tokens to vectors."""

    def __init__(self, words: WordPiece, model: MiniLM) -> None:
        self._words = words
        self._model = model

    def encode(self, text: str) -> Tokens:
        """The text as the model reads it."""
        return self._words.encode(text, MAX_TOKENS)

    def embed(self, batch: Sequence[Sequence[int]]) -> list[list[float]]:
        """One vector for each text."""
        rows: list[list[float]] = self._model.embed(batch).astype(float).round(DIGITS).tolist()
        return rows
