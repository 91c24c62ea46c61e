"""One thread for all vectors: takes texts of everybody in turns, a small batch at a time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from worker.features.embedding.types import EmbeddingResult
from worker.features.embedding.wordpiece import EncodedText

#: Tokens of a batch, padding included. More would be hardly faster, and others wait that long.
BATCH_TOKENS: Final = 256
#: Texts that are read ahead, to put those of about the same length together.
READ_AHEAD: Final = 128
#: Who closes it does not wait longer for a batch under way.
CLOSE_S: Final = 5.0


class EmbeddingModel(Protocol):
    """What the thread works with."""

    def encode(self, text: str) -> EncodedText:
        """The text as the model reads it."""

    def embed(self, batch: Sequence[Sequence[int]]) -> list[list[float]]:
        """One vector for each text."""


class EmbeddingRequest:
    """Texts that somebody waits for. Made and awaited in the loop, done in the thread."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._loop = asyncio.get_running_loop()
        self._vectors: list[list[float]] = [[]] * len(texts)
        self._read = 0
        #: Batches to come, as places of texts and their tokens.
        self._batches: list[list[tuple[int, list[int]]]] = []
        self._tokens = self._truncated = 0
        self._batch_done = asyncio.Event()
        self._error: BaseException | None = None
        #: How many texts are done.
        self.done = 0
        #: Nobody waits any more.
        self.abandoned = False

    async def wait_for_batch(self) -> bool:
        """Wait for another batch; whether there is more to come."""
        await self._batch_done.wait()
        self._batch_done.clear()
        if self._error is not None:
            raise self._error
        return self.done < len(self._texts)

    @property
    def result(self) -> EmbeddingResult:
        return EmbeddingResult(self._vectors, self._tokens, self._truncated)

    def run_batch(self, model: EmbeddingModel) -> bool:
        """Do one batch; whether there is more. Called in the thread."""
        if not self._batches:
            self._read_ahead(model)
        if self._batches:
            places, batch = zip(*self._batches.pop())
            for place, vector in zip(places, model.embed(batch)):
                self._vectors[place] = vector
            self.done += len(places)
        self._notify()
        return self.done < len(self._texts)

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._notify()

    def _notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._batch_done.set)

    def _read_ahead(self, model: EmbeddingModel) -> None:
        read: list[tuple[int, list[int]]] = []
        for place in range(self._read, min(self._read + READ_AHEAD, len(self._texts))):
            ids, truncated = model.encode(self._texts[place])
            read.append((place, ids))
            self._tokens += len(ids)
            self._truncated += truncated
            time.sleep(0)  # plain Python holds the interpreter; the loop may want it
        self._read += len(read)
        self._batches = make_batches(read)


def make_batches(texts: list[tuple[int, list[int]]]) -> list[list[tuple[int, list[int]]]]:
    """Texts of about the same length together, so that little is padded."""
    found: list[list[tuple[int, list[int]]]] = []
    room = 0
    for text in sorted(texts, key=lambda text: len(text[1]), reverse=True):
        if room <= 0:
            room = BATCH_TOKENS // len(text[1])  # the longest of its batch
            found.append([])
        found[-1].append(text)
        room -= 1
    return found


class EmbeddingThread:
    """Runs from the first work on until it is closed. The model is loaded by the first who asks."""

    def __init__(self, load: Callable[[], EmbeddingModel]) -> None:
        self._load = load
        self._model: EmbeddingModel | None = None
        self._queue: deque[EmbeddingRequest] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def submit(self, work: EmbeddingRequest) -> None:
        """Do this too, beside the others."""
        with self._changed:
            if self._closing:
                raise RuntimeError("the embedder is closed")
            self._queue.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="embedder", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """End after the batch under way. Blocks until then."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if self._closing:
                    break
                work = self._queue.popleft()
            if not work.abandoned and self._run_batch(work):
                with self._changed:
                    self._queue.append(work)
        for work in self._queue:
            work.fail(RuntimeError("the embedder is closed"))

    def _run_batch(self, work: EmbeddingRequest) -> bool:
        try:
            if self._model is None:
                self._model = self._load()
            return work.run_batch(self._model)
        except BaseException as error:
            work.fail(error)
            return False
