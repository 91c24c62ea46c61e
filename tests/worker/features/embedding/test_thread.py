"""The embedding thread: fair, quick to cancel, and it does not block the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from sluice.worker.features.embedding import thread as module
from sluice.worker.features.embedding.local import LocalEmbedder
from sluice.worker.features.embedding.thread import BATCH_TOKENS, EmbeddingRequest, EmbeddingThread
from sluice.worker.features.embedding.types import EmbeddingResult
from sluice.worker.features.embedding.wordpiece import EncodedText
from tests.support.waiting import eventually


class SlowModel:
    """The length of a text is its number of letters, which is also its vector.

    Batches can be held.
    """

    def __init__(self) -> None:
        self.done: list[list[int]] = []
        self.read = 0
        self.entered = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)
        self._held = False
        self.fault: Exception | None = None

    def encode(self, text: str) -> EncodedText:
        self.read += 1
        return EncodedText([*map(ord, text[:BATCH_TOKENS])], len(text) > BATCH_TOKENS)

    def embed(self, batch: Sequence[Sequence[int]]) -> list[list[float]]:
        self.entered.release()
        assert not self._held or self._permits.acquire(timeout=20)
        if self.fault is not None:
            raise self.fault
        self.done.append([len(ids) for ids in batch])
        return [[float(len(ids))] for ids in batch]

    def hold(self) -> None:
        """Let no batch end until allowed."""
        self._held = True

    def allow(self, batches: int = 1000) -> None:
        """Let this many batches end."""
        self._permits.release(batches)

    async def busy(self) -> None:
        """Wait until a batch has begun."""
        await asyncio.get_running_loop().run_in_executor(None, self.entered.acquire)


@pytest.fixture
def model() -> SlowModel:
    return SlowModel()


@pytest.fixture
async def thread(model: SlowModel) -> AsyncIterator[EmbeddingThread]:
    thread = EmbeddingThread(lambda: model)
    yield thread
    model.allow()
    await asyncio.to_thread(thread.close)


def put(thread: EmbeddingThread, *texts: str) -> EmbeddingRequest:
    work = EmbeddingRequest(texts)
    thread.submit(work)
    return work


async def result_of(work: EmbeddingRequest) -> EmbeddingResult:
    async def wait() -> None:
        while await work.wait_for_batch():
            pass

    await asyncio.wait_for(wait(), 20)
    return work.result


LONG = "x" * BATCH_TOKENS


def test_batches_hold_texts_of_about_one_length() -> None:
    lengths = [3, 200, 64, 64, 5, 128, 60, 100, 3, 256]
    found = module.make_batches([(place, [0] * length) for place, length in enumerate(lengths)])
    assert [[len(ids) for _, ids in batch] for batch in found] == [
        [256], [200], [128, 100], [64, 64, 60, 5], [3, 3],
    ]  # fmt: skip
    assert sorted(place for batch in found for place, _ in batch) == list(range(10))


async def test_vectors_come_in_the_order_of_the_texts(thread: EmbeddingThread) -> None:
    texts = ["a" * (7 * number % 100 + 1) for number in range(3 * module.READ_AHEAD)]
    made = await result_of(put(thread, *texts))
    assert made.vectors == [[float(len(text))] for text in texts]
    assert made.tokens == sum(map(len, texts))
    assert made.truncated == 0
    made = await result_of(put(thread, "a", LONG + "x", "bb", LONG * 2))
    assert (made.truncated, made.tokens) == (2, 3 + 2 * BATCH_TOKENS)


async def test_several_lists_take_turns(thread: EmbeddingThread, model: SlowModel) -> None:
    """So a short text does not wait for a long list."""
    model.hold()
    first = put(thread, *[LONG] * 3)
    await model.busy()
    second, query = put(thread, *["y" * 200] * 3), put(thread, "query")
    for _ in range(100):
        await asyncio.sleep(0)  # the loop continues meanwhile
    assert model.done == []
    model.allow()
    await asyncio.gather(*map(result_of, (first, second, query)))
    assert model.done == [[256], [200], [5], [256], [200], [256], [200]]


async def test_long_lists_are_read_in_parts(thread: EmbeddingThread, model: SlowModel) -> None:
    model.hold()
    work = put(thread, *["a"] * (3 * module.READ_AHEAD))
    await model.busy()
    assert model.read == module.READ_AHEAD
    model.allow()
    await result_of(work)
    assert model.read == 3 * module.READ_AHEAD


async def test_an_error_affects_only_one_request(thread: EmbeddingThread, model: SlowModel) -> None:
    model.fault = ValueError("bad numbers")
    with pytest.raises(ValueError, match="bad numbers"):
        await result_of(put(thread, "a", "b"))
    model.fault = None
    made = await result_of(put(thread, "a", "b"))
    assert len(made.vectors) == 2


async def test_a_model_that_cannot_be_loaded_is_tried_again(model: SlowModel) -> None:
    faults = [OSError("no such file")]

    def load() -> SlowModel:
        if faults:
            raise faults.pop()
        return model

    thread = EmbeddingThread(load)
    with pytest.raises(OSError, match="no such file"):
        await result_of(put(thread, "a"))
    assert (await result_of(put(thread, "a"))).vectors == [[1.0]]
    thread.close()


async def test_closing_ends_after_the_batch_under_way(model: SlowModel) -> None:
    thread = EmbeddingThread(lambda: model)
    model.hold()
    begun, waiting = put(thread, *[LONG] * 5), put(thread, "a")
    await model.busy()
    closing = asyncio.ensure_future(asyncio.to_thread(thread.close))
    await eventually(lambda: thread._closing)
    model.allow()
    await asyncio.wait_for(closing, 20)
    for work in (begun, waiting):
        with pytest.raises(RuntimeError, match="closed"):
            await result_of(work)
    assert model.done == [[256]]
    with pytest.raises(RuntimeError, match="closed"):
        put(thread, "a")
    EmbeddingThread(lambda: model).close()  # never started


@pytest.fixture
async def embedder(
    model: SlowModel, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> AsyncIterator[LocalEmbedder]:
    monkeypatch.setattr(LocalEmbedder, "_load", lambda self: model)
    embedder = LocalEmbedder(tmp_path)  # type: ignore[arg-type]
    yield embedder
    model.allow()
    await embedder.close()


async def test_a_cancellation_stops_the_work(embedder: LocalEmbedder, model: SlowModel) -> None:
    model.hold()
    task = asyncio.ensure_future(embedder.embed([LONG] * 50))
    await model.busy()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    model.allow()
    assert await embedder.embed(["ab"]) == [[2.0]]
    assert model.done == [[256], [2]]


async def test_progress_is_reported(embedder: LocalEmbedder, model: SlowModel) -> None:
    reported: list[int] = []

    async def on_done(done: int) -> None:
        reported.append(done)
        model.allow(1)

    model.hold()
    model.allow(1)
    made = await embedder.embed_all([LONG] * 5, None, on_done)
    assert len(made.vectors) == 5
    assert reported == [1, 2, 3, 4]


async def test_an_error_in_the_progress_callback_stops_the_work(
    embedder: LocalEmbedder, model: SlowModel
) -> None:
    async def on_done(done: int) -> None:
        raise ValueError("enough")

    model.hold()
    model.allow(1)
    with pytest.raises(ValueError, match="enough"):
        await embedder.embed_all([LONG] * 50, None, on_done)
    model.allow()
    assert await embedder.embed(["ab"]) == [[2.0]]
    assert model.done in ([[256], [2]], [[256], [256], [2]])


async def test_many_requests_wait_in_a_queue(embedder: LocalEmbedder, model: SlowModel) -> None:
    assert await embedder.embed([]) == []
    assert not model.done
    requests = (embedder.embed(["a" * (number + 1)]) for number in range(90))
    found = await asyncio.wait_for(asyncio.gather(*requests), 20)
    assert found == [[[number + 1.0]] for number in range(90)]
