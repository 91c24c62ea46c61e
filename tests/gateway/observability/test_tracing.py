"""The trace of a request is passed on with its job, in addition to the fields of the contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.trace import SpanKind, StatusCode

from sluice.common.jobs.store import WorkerIdentity
from sluice.common.observability import logs, tracing
from sluice.worker.errors import TransientError
from tests.gateway.http.test_middleware import access_log
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem
from tests.support.servers import Backend
from tests.support.spans import Spans, attributes, collecting, ids
from tests.support.worker.harness import WorkerHarness, registry_of

pytestmark = pytest.mark.fakeredis_only

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with collecting() as spans:
        yield spans


async def options(gateway: Gateway, job_id: str) -> Any:
    raw = await gateway.redis.hget(gateway.keys.lease(job_id), "options")
    return None if raw is None else json.loads(raw)


async def check_contract(gateway: Gateway, job_id: str) -> None:
    """Job, message and event have the fields of the contract, traced or not."""
    job = await gateway.redis.hgetall(gateway.keys.job(job_id))
    assert len(job) == 9
    for _, fields in await gateway.redis.xrange(gateway.keys.queue):
        assert set(fields) == {b"job_id", b"task", b"payload"}
    for _, fields in await gateway.redis.xrange(gateway.keys.events(job_id)):
        assert set(fields) == {b"type", b"ts", b"step", b"data"}


async def test_trace_is_passed_on_without_an_sdk(gateway: Gateway) -> None:
    assert tracing.tracer is None
    answer = await gateway.client.post(CHAT, {"traceparent": PARENT, "tracestate": "a=1"})
    assert (answer.status, answer.header("traceresponse")) == (202, PARENT)
    job_id = answer.json()["job_id"]
    assert await options(gateway, job_id) == {"traceparent": PARENT, "tracestate": "a=1"}
    await check_contract(gateway, job_id)
    job_id = await gateway.create({**CHAT, "timeout_s": 5}, traceparent=PARENT)
    assert await options(gateway, job_id) == {"timeout_s": 5.0, "traceparent": PARENT}


async def test_a_missing_or_invalid_traceparent_is_ignored(gateway: Gateway) -> None:
    body = json.dumps(CHAT).encode()
    for headers in (
        [],
        [("traceparent", "junk")],
        [("traceparent", f"00-{'0' * 32}-00f067aa0ba902b7-01")],
        [("traceparent", PARENT), ("traceparent", PARENT)],
        [("traceparent", "\xff" * 55)],
        [("tracestate", "a=1")],
    ):
        pairs = [("content-type", "application/json"), *headers]
        answer = await gateway.client.send("POST", "/v1/jobs", pairs, body)
        assert answer.status == 202
        assert answer.header("traceresponse") is None
        assert await options(gateway, answer.json()["job_id"]) is None


async def test_trace_is_not_part_of_the_idempotent_request(gateway: Gateway, spans: Spans) -> None:
    """A repeated request has another trace and gets the same job, which keeps its trace."""
    first = await gateway.client.post(CHAT, {"idempotency-key": "k", "traceparent": PARENT})
    kept = await options(gateway, first.json()["job_id"])
    again = await gateway.client.post(CHAT, {"idempotency-key": "k"})
    assert again.json() == first.json()
    assert again.header("idempotent-replayed") == "true"
    assert await options(gateway, first.json()["job_id"]) == kept
    sent = spans.named("send")
    assert [attributes(span)["sluice.job.replayed"] for span in sent] == [False, True]
    assert ids(sent[0])[0] != ids(sent[1])[0]


async def test_non_recording_provider_keeps_the_trace(gateway: Gateway) -> None:
    tracing.set_provider(otel.NoOpTracerProvider())
    try:
        traced = await gateway.client.post(CHAT, {"traceparent": PARENT})
        plain = await gateway.client.post(CHAT)
    finally:
        tracing.set_provider(None)
    assert traced.header("traceresponse") == PARENT
    assert (plain.status, plain.header("traceresponse")) == (202, None)


async def test_a_submission_has_a_send_span(gateway: Gateway, spans: Spans) -> None:
    answer = await gateway.client.post(CHAT, {"traceparent": PARENT})
    [span] = spans.all
    trace_id, span_id = ids(span)
    assert trace_id == TRACE
    assert span.parent is not None
    assert span.parent.span_id == 0x00F067AA0BA902B7
    assert (span.name, span.kind) == ("send jobs:stream", SpanKind.PRODUCER)
    here = f"00-{trace_id}-{span_id}-01"
    assert answer.header("traceresponse") == here
    job_id = answer.json()["job_id"]
    assert await options(gateway, job_id) == {"traceparent": here}
    assert attributes(span) == {
        "messaging.system": "redis",
        "messaging.destination.name": "jobs:stream",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "sluice.job.id": job_id,
        "sluice.job.replayed": False,
    }


async def test_rejected_request_has_an_error_span(make: Make, spans: Spans) -> None:
    gateway = make(backpressure_max_backlog=1)
    await gateway.create()
    check_problem(await gateway.client.post(CHAT), 429, "queue_full")
    span = spans.all[-1]
    assert attributes(span)["error.type"] == "queue_full"
    assert span.status.status_code is StatusCode.ERROR


async def test_one_trace_from_request_through_retry_to_end(
    gateway: Gateway, backend: Backend, spans: Spans
) -> None:
    async def second_time(context: Any, payload: Any) -> str:
        if context.attempt == 1:
            raise TransientError("busy")
        return str(context.traceparent)

    identity = WorkerIdentity("workers", "c1", 30_000, 600)
    worker = WorkerHarness(backend, gateway.keys, identity, registry_of(second_time))
    try:
        worker.start()
        job_id = await gateway.create(traceparent=PARENT)
        assert await worker.settled(job_id) == b"done"
        await worker.stop()
    finally:
        await worker.close()
    [sent] = spans.named("send")
    first, second = spans.named("process")
    assert {ids(span)[0] for span in spans.all} == {TRACE}
    for span in (first, second):
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == ids(sent)[1]
    assert [attributes(span)["sluice.job.attempt"] for span in (first, second)] == [1, 2]
    assert [attributes(span)["sluice.job.outcome"] for span in (first, second)] == ["retry", "done"]
    await check_contract(gateway, job_id)
    job = await gateway.redis.hgetall(gateway.keys.job(job_id))
    assert json.loads(job[b"result"]) == f"00-{TRACE}-{ids(second)[1]}-01"


async def test_access_log_has_job_and_trace_ids(gateway: Gateway) -> None:
    """At the default log level, so that `journalctl JOB_ID=…` finds the request."""
    with access_log(lambda record: (record.getMessage(), logs.context_fields(record))) as found:
        job_id = await gateway.create(traceparent=PARENT, x_request_id="r1")
        await gateway.client.get(f"/v1/jobs/{job_id}", {"x-request-id": "r2"})
    (posted, about), (_, read) = found
    assert posted.startswith("POST /v1/jobs 202 ")
    assert about == {"job_id": job_id, "request_id": "r1", "trace_id": TRACE}
    assert read == {"job_id": job_id, "request_id": "r2"}
