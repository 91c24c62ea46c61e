"""The task `embed`, from payload to result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sluice.common.codec import dumps
from sluice.worker.execution.outcome import Outcome
from sluice.worker.features.embedding.factory import NullEmbedder
from sluice.worker.features.embedding.types import EmbeddingResult, OnDone, WrongDimensions
from sluice.worker.handlers import embed
from sluice.worker.registry import Registry
from tests.support.worker.harness import MakeWorker, WorkerHarness


class Lengths:
    """Vectors contain the length of the text; works in small batches.

    `hang` keeps it from ending.
    """

    name = "lengths-2"
    ready = True

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], int | None]] = []
        self.hang = False
        self.begun = asyncio.Event()
        self.stopped = asyncio.Event()

    async def embed_all(
        self, texts: Sequence[str], dimensions: int | None = None, on_done: OnDone | None = None
    ) -> EmbeddingResult:
        self.asked.append((list(texts), dimensions))
        if dimensions not in (None, 2):
            raise WrongDimensions(self.name, dimensions or 0, 2)
        for done in range(1, len(texts)):
            if on_done is not None:
                await on_done(done)
        self.begun.set()
        if self.hang:
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.set()
        vectors = [[float(len(text)), 0.0] for text in texts]
        return EmbeddingResult(vectors, sum(map(len, texts)), sum(len(text) > 9 for text in texts))


@pytest.fixture
def embedder() -> Lengths:
    return Lengths()


@pytest.fixture
def harness(make_worker: MakeWorker, embedder: Lengths) -> WorkerHarness:
    registry = Registry()
    embed.add_handler(registry, embedder)
    return make_worker(registry=registry)


async def result_of(harness: WorkerHarness, **payload: Any) -> tuple[dict[str, Any], list[Any]]:
    outcome, job_id = await harness.execute(dumps(payload), "embed")
    assert outcome is Outcome.DONE, await harness.job(job_id)
    return await harness.result(job_id), await harness.parsed_events(job_id)


async def error_of(harness: WorkerHarness, **payload: Any) -> dict[str, Any]:
    outcome, job_id = await harness.execute(dumps(payload), "embed")
    assert outcome is Outcome.ERROR
    return await harness.error(job_id)


async def test_one_text(harness: WorkerHarness, embedder: Lengths) -> None:
    result, events = await result_of(harness, input="text")
    assert isinstance(result.pop("ms"), int)
    assert result == {
        "vectors": [[4.0, 0.0]],
        "dimensions": 2,
        "model": "lengths-2",
        "usage": {
            "prompt_tokens": 4, "completion_tokens": 0, "total_tokens": 4, "cached_tokens": 0,
        },
    }  # fmt: skip
    assert embedder.asked == [(["text"], None)]
    assert [type for type, _, _ in events] == ["queued", "running", "done"]


@pytest.mark.fakeredis_only
async def test_many_texts_with_progress(harness: WorkerHarness) -> None:
    texts = ["a" * (number % 12 + 1) for number in range(200)]
    result, events = await result_of(harness, input=texts, dimensions=2)
    assert result["vectors"] == [[float(len(text)), 0.0] for text in texts]
    assert result["truncated"] == sum(len(text) > 9 for text in texts)
    reported = [data for type, step, data in events if (type, step) == ("progress", "worker.embed")]
    assert 10 <= len(reported) <= embed.PROGRESS_EVENTS
    assert [data["done"] for data in reported] == sorted({data["done"] for data in reported})
    assert all(data["total"] == 200 and data["attempt"] == 1 for data in reported)
    _, events = await result_of(harness, input=["a"] * (embed.PROGRESS_MIN_TEXTS - 1))
    assert "progress" not in [type for type, _, _ in events]


@pytest.mark.fakeredis_only
async def test_invalid_payloads_are_refused(harness: WorkerHarness, make_worker: Any) -> None:
    long = "a" * embed.MAX_TEXT_CHARS
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "input: Field required"),
        ({"input": ""}, "at least 1 character"),
        ({"input": []}, "at least 1 item"),
        ({"input": ["a", ""]}, "input.1: String should have at least 1 character"),
        ({"input": [1, 2, 3]}, "valid string"),
        ({"input": [["a"]]}, "input.0: Input should be a valid string"),
        ({"input": 3}, "input: Input should be a valid list"),
        ({"input": ["a"] * 257}, "at most 256 items"),
        ({"input": long + "a"}, "at most 100000 characters"),
        ({"input": [long] * 11}, "1100000 characters, 1000000 at most"),
        ({"input": "a", "dimensions": 0}, "dimensions: "),
        ({"input": "a", "dimensions": "2"}, "dimensions: "),
        ({"input": "a", "dimensions": 3}, "dimensions: lengths-2 produces 2 dimensions, not 3"),
        ({"input": "a", "size": 3}, "size: Extra inputs are not permitted"),
    ]
    for payload, reported in cases:
        error = await error_of(harness, **payload)
        assert error["kind"] == "invalid_payload", payload
        assert reported in error["message"]
        assert len(error["message"]) < 2000
    registry = Registry()
    embed.add_handler(registry, NullEmbedder("nothing is installed; run `sluice model install`"))
    error = await error_of(make_worker(registry=registry), input="a")
    assert error["kind"] == "no_embedder"
    assert error["message"] == "nothing is installed; run `sluice model install`"


@pytest.mark.fakeredis_only
async def test_cancel_stops_the_work_at_once(harness: WorkerHarness, embedder: Lengths) -> None:
    embedder.hang = True
    harness.start()
    [job_id] = await harness.post(task="embed", payload=dumps({"input": ["a", "b"]}))
    await asyncio.wait_for(embedder.begun.wait(), 10)
    await harness.cancel(job_id)
    await asyncio.wait_for(embedder.stopped.wait(), 10)
    assert await harness.settled(job_id) == b"canceled"
    assert (await harness.job(job_id))[b"result"] == b""
    events = await harness.parsed_events(job_id)
    assert "forced" not in [data["stage"] for _, _, data in events if "stage" in data]
