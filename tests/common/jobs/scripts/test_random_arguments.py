"""Random and hostile strings as arguments of scripts: stored unchanged, and never interpreted."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.common.contracts.queue import Answer
from sluice.common.jobs.store import NewJob, PendingEvent
from tests.support.store.jobs import StoreHarness

#: The embedded Redis and newer servers run the scripts with their own Lua.
pytestmark = [pytest.mark.real_redis, pytest.mark.plain_names]

USUAL = settings(
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
HOSTILE = st.sampled_from(
    [
        *("", "\0", "\r\n", "a\r\nDEL x\r\n", "]]", "]==]", "--[[", '"', "\\", "'", "%", "%s%d%n"),
        *("nil", "false", "0", "-1", "1e999", "nan", "inf", "0x10", " 1", "9" * 400, "*", "{", "}"),
        *(
            'redis.call("FLUSHALL")',
            "KEYS[1]",
            "jobs:stream",
            "job:",
            ":lease",
            "\ud7ff",
            "\U0010ffff",
        ),
        *(
            "return 1",
            "os.exit()",
            '"; redis.call("FLUSHALL") --',
            "$1\r\n$",
            "x" * 5000,
            "\x1a\x00",
        ),
    ]
)
TEXTS = HOSTILE | st.text(max_size=20)
BYTES = TEXTS.map(str.encode) | st.binary(max_size=40)
EVENTS = st.lists(st.builds(PendingEvent, TEXTS, TEXTS, BYTES), min_size=1, max_size=4)


@USUAL
@given(task=TEXTS, payload=BYTES, idempotency_key=TEXTS.filter(bool), fingerprint=TEXTS)
async def test_jobs_of_any_text(
    harness: StoreHarness, task: str, payload: bytes, idempotency_key: str, fingerprint: str
) -> None:
    await harness.client.flushall()
    await harness.client.set("unrelated", "data")
    await harness.group()
    job = NewJob(
        str(uuid.uuid4()),
        task,
        payload,
        600,
        idempotency_key=idempotency_key,
        idempotency_ttl_s=600,
        fingerprint=fingerprint or "none",
    )
    accepted = await harness.store.enqueue(job, harness.worker.group, 10**9)
    assert (accepted.job_id, accepted.replayed) == (job.job_id, False)
    stored = await harness.job(job.job_id)
    assert (stored[b"task"], stored[b"payload"]) == (task.encode(), payload)
    [message] = await harness.queued()
    assert (message[b"task"], message[b"payload"]) == (task.encode(), payload)
    repeated = replace(job, job_id=str(uuid.uuid4()))
    again = await harness.store.enqueue(repeated, harness.worker.group, 10**9)
    assert (again.job_id, again.replayed) == (job.job_id, True)
    assert await harness.client.get("unrelated") == b"data"


@USUAL
@given(events=EVENTS, result=BYTES)
async def test_events_and_results_of_any_bytes(
    harness: StoreHarness, events: list[PendingEvent], result: bytes
) -> None:
    await harness.client.flushall()
    await harness.client.set("unrelated", "data")
    lease = await harness.running()
    assert await harness.emit(lease, 1, events) is Answer.OK
    emitted = (await harness.events(lease.job_id))[-len(events) :]
    for event, stored in zip(events, emitted):
        assert stored[b"type"] == event.type.encode()
        assert stored[b"step"] == event.step.encode()
        assert stored[b"data"] == event.data
    assert await harness.client.get("unrelated") == b"data"


@USUAL
@given(job_id=TEXTS.filter(bool), message_id=TEXTS, token=TEXTS)
async def test_unknown_jobs_and_tokens_of_any_text(
    harness: StoreHarness, job_id: str, message_id: str, token: str
) -> None:
    await harness.client.flushall()
    lease = await harness.running(token="secret")
    before = await harness.snapshot()
    for forged in (
        lease._replace(token=token),
        lease._replace(job_id=job_id),
        lease._replace(job_id=job_id, message_id=message_id, token=token),
    ):
        answer = await harness.emit(forged, 1, [PendingEvent("message", "x", b"{}")])
        assert answer in (Answer.LOST, Answer.GONE)
    assert await harness.snapshot() == before
