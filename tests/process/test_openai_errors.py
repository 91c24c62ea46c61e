"""The official `openai` package with errors: refusals, failures and disconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.process.openai_rig import MODEL, OpenAIRig, running_rig
from tests.worker.processes import wait_until

pytestmark = pytest.mark.process

#: Time limit from a disconnect to the end of the job.
CANCELED_WITHIN_S = 0.25
#: The fastest of this many attempts counts, because the machine may be busy.
TRIES = 3


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIRig]:
    with running_rig(tmp_path_factory.mktemp("openai")) as made:
        yield made


@pytest.fixture
def client(rig: OpenAIRig) -> Iterator[OpenAI]:
    with OpenAI(base_url=rig.url, api_key="sk-local", timeout=30, max_retries=0) as made:
        yield made


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


# -- refusals --------------------------------------------------------------------------------------


def test_an_unknown_model(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-9", messages=user("hi"))
    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    assert f"`{MODEL}`" in error.value.message
    assert error.value.request_id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_an_invalid_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=user("hi"), n=2)
    assert (error.value.code, error.value.param) == ("unsupported_parameter", "n")
    with pytest.raises(openai.BadRequestError) as error:
        client.embeddings.create(model=MODEL, input=[[1, 2]])
    assert error.value.code == "unsupported_value"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_that_the_model_refuses(client: OpenAI, streamed: bool) -> None:
    """Also for a stream that has not started yet."""
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=user("fail with 400"), stream=streamed)
    assert error.value.code == "model_refused"
    assert "asked to fail" in error.value.message


def test_a_failed_job_is_not_retried(rig: OpenAIRig) -> None:
    """By default the SDK would retry."""
    with OpenAI(base_url=rig.url, api_key="x", timeout=30, max_retries=2) as client:
        before = len(rig.jobs())
        with pytest.raises(openai.InternalServerError) as error:
            client.chat.completions.create(model=MODEL, messages=user("die after 3"))
        assert (error.value.status_code, error.value.code) == (502, "model_stream_broken")
        assert len(rig.jobs()) == before + 1


def test_a_model_that_fails_during_the_stream(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=user("die after 30 slowly"), stream=True
    )
    chunks = []
    with pytest.raises(openai.APIError) as error:
        chunks.extend(stream)  # events before the error are kept
    assert error.value.code == "model_stream_broken"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text.startswith("1 2 3")


# -- disconnects -----------------------------------------------------------------------------


async def test_a_disconnect_during_the_stream_cancels_the_job(rig: OpenAIRig) -> None:
    async with AsyncOpenAI(base_url=rig.url, api_key="x", timeout=30) as client:
        took_s = []
        for _ in range(TRIES):
            raw = await client.chat.completions.with_raw_response.create(
                model=MODEL, messages=user("count to 5000 slowly"), stream=True
            )
            job_id = raw.headers["x-job-id"]
            stream: Any = raw.parse()
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            left = time.monotonic()
            await stream.close()
            assert await asyncio.to_thread(rig.ended, job_id) == "canceled"
            took_s.append(time.monotonic() - left)
    assert min(took_s) < CANCELED_WITHIN_S
    # The request to the model server has ended, too.
    assert wait_until(lambda: all(asked["over"] for asked in rig.model_requests()))
    assert rig.model_requests()[-1]["hung_up"]


async def test_a_disconnect_while_waiting_cancels_the_job(rig: OpenAIRig) -> None:
    """By a client timeout and by cancellation; also while the job is queued."""
    before = set(rig.jobs())
    async with AsyncOpenAI(base_url=rig.url, api_key="x", timeout=30, max_retries=0) as client:
        asking = [
            asyncio.create_task(
                client.chat.completions.create(model=MODEL, messages=user("count to 5000 slowly"))
            )
            for _ in range(6)
        ]

        def all_there() -> bool:
            return len(set(rig.jobs()) - before) == len(asking)

        await asyncio.to_thread(wait_until, all_there)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=5).chat.completions.create(
                model=MODEL, messages=user("count to 5000 slowly")
            )
    jobs = set(rig.jobs()) - before
    assert len(jobs) == len(asking) + 1
    for job_id in jobs:
        assert await asyncio.to_thread(rig.ended, job_id) == "canceled"
    reasons = [
        fields[b"data"]
        for job_id in jobs
        for _, fields in rig.redis.client.xrange(f"job:{job_id}:events")  # type: ignore[union-attr]
        if fields[b"type"] in (b"canceling", b"canceled")
    ]
    assert any(b"the client has left" in reason for reason in reasons)


def test_a_worker_dies_during_an_answer(rig: OpenAIRig, client: OpenAI) -> None:
    """Another worker takes over; the client notices only a pause."""
    stream = client.chat.completions.create(
        model=MODEL, messages=user("count to 60 slowly"), stream=True
    )
    chunks = job_id = ""
    for chunk in stream:
        chunks += chunk.choices[0].delta.content or ""
        if "20" in chunks and not job_id:
            rig.worker.kill()
            rig.worker = rig.start_worker()
            job_id = chunk.id.removeprefix("chatcmpl-")
    assert chunks == " ".join(map(str, range(1, 61)))
    events: Any = rig.redis.client.xrange(f"job:{job_id}:events")
    assert [fields[b"type"] for _, fields in events].count(b"running") == 2


def test_a_gateway_stops_during_an_answer(tmp_path: Any) -> None:
    with running_rig(tmp_path) as rig:
        client = OpenAI(base_url=rig.url, api_key="x", timeout=30, max_retries=0)
        stream = client.chat.completions.create(
            model=MODEL, messages=user("count to 100 slowly"), stream=True
        )
        for chunk in stream:
            if "5" in (chunk.choices[0].delta.content or ""):
                break
        rig.gateway.process.terminate()
        with client, pytest.raises(openai.APIError) as error:
            list(stream)
        assert error.value.code == "gateway_stopping"
        assert rig.gateway.process.wait(20) == 0
        [job_id] = rig.jobs()

        def ended() -> Any:
            status: Any = rig.redis.client.hget(f"job:{job_id}", "status")
            return status if status not in (b"queued", b"running") else None

        assert wait_until(ended) == b"done"
