"""One thread that computes all local embeddings: requests take turns, one small batch at a time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from sluice.worker.features.embedding.types import EmbeddingResult
from sluice.worker.features.embedding.wordpiece import EncodedText

#: Tokens per batch, padding included. Larger batches are hardly faster and delay other requests.
BATCH_TOKENS: Final = 256
#: Texts tokenized ahead, to group those of similar length.
READ_AHEAD: Final = 128
#: Longest time that closing waits for the current batch.
CLOSE_S: Final = 5.0


class EmbeddingModel(Protocol):
    """Model as the thread uses it."""

    def encode(self, text: str) -> EncodedText:
        """Tokenize a text."""

    def embed(self, batch: Sequence[Sequence[int]]) -> list[list[float]]:
        """One vector per text."""


class EmbeddingRequest:
    """Texts to embed. Created and awaited in the event loop, processed in the thread."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._loop = asyncio.get_running_loop()
        self._vectors: list[list[float]] = [[]] * len(texts)
        self._read = 0
        #: Batches to do, as (index of the text, token ids).
        self._batches: list[list[tuple[int, list[int]]]] = []
        self._tokens = self._truncated = 0
        self._batch_done = asyncio.Event()
        self._error: BaseException | None = None
        #: Number of texts done.
        self.done = 0
        #: True if the caller has stopped waiting.
        self.abandoned = False

    async def wait_for_batch(self) -> bool:
        """Wait for the next batch; returns True if more are to come."""
        await self._batch_done.wait()
        self._batch_done.clear()
        if self._error is not None:
            raise self._error
        return self.done < len(self._texts)

    @property
    def result(self) -> EmbeddingResult:
        return EmbeddingResult(self._vectors, self._tokens, self._truncated)

    def run_batch(self, model: EmbeddingModel) -> bool:
        """Process one batch in the thread; returns True if more are to come."""
        if not self._batches:
            self._read_ahead(model)
        if self._batches:
            indexes, batch = zip(*self._batches.pop())
            for index, vector in zip(indexes, model.embed(batch)):
                self._vectors[index] = vector
            self.done += len(indexes)
        self._notify()
        return self.done < len(self._texts)

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._notify()

    def _notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._batch_done.set)

    def _read_ahead(self, model: EmbeddingModel) -> None:
        read: list[tuple[int, list[int]]] = []
        for index in range(self._read, min(self._read + READ_AHEAD, len(self._texts))):
            ids, truncated = model.encode(self._texts[index])
            read.append((index, ids))
            self._tokens += len(ids)
            self._truncated += truncated
            time.sleep(0)  # release the GIL so that the event loop can run
        self._read += len(read)
        self._batches = make_batches(read)


def make_batches(texts: list[tuple[int, list[int]]]) -> list[list[tuple[int, list[int]]]]:
    """Group texts of similar length, so that little padding is needed."""
    found: list[list[tuple[int, list[int]]]] = []
    remaining = 0
    for text in sorted(texts, key=lambda text: len(text[1]), reverse=True):
        if remaining <= 0:
            remaining = BATCH_TOKENS // len(text[1])  # the longest of its batch
            found.append([])
        found[-1].append(text)
        remaining -= 1
    return found


class EmbeddingThread:
    """Starts with the first request and runs until closed. The first request loads the model."""

    def __init__(self, load: Callable[[], EmbeddingModel]) -> None:
        self._load = load
        self._model: EmbeddingModel | None = None
        self._queue: deque[EmbeddingRequest] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def submit(self, work: EmbeddingRequest) -> None:
        """Queue a request."""
        with self._changed:
            if self._closing:
                raise RuntimeError("the embedder is closed")
            self._queue.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="embedder", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Stop after the current batch; blocks until then, at most CLOSE_S."""
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
