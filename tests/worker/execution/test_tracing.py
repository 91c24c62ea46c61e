"""Attempts as spans of the trace of their request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import propagate
from opentelemetry import trace as otel
from opentelemetry.trace import SpanKind, StatusCode

from sluice.common.jobs.options import JobOptions
from sluice.common.observability import logs, tracing
from sluice.worker.errors import JobError, TransientError
from sluice.worker.execution.executor import Outcome
from tests.support.spans import Spans, attributes, collecting, ids
from tests.support.worker.harness import MakeWorker, registry_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
TRACED = JobOptions(traceparent=PARENT, tracestate="vendor=x").to_json()


@pytest.fixture
def spans() -> Iterator[Spans]:
    with collecting() as spans:
        yield spans


def answer(context: Any, payload: Any) -> Any:
    """The trace that a handler sees, and that it would pass on."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {"mine": context.traceparent, "carried": carrier, "logged": logs.trace_id.get()}


async def answer_async(context: Any, payload: Any) -> Any:
    await asyncio.sleep(0)
    return answer(context, payload)


@pytest.mark.parametrize("handler", [answer, answer_async])
async def test_the_span_is_current_while_the_handler_runs(
    make_worker: MakeWorker, spans: Spans, handler: Any
) -> None:
    worker = make_worker(handler)
    job_id = await worker.run_job(options=TRACED)
    await worker.stop()
    [span] = spans.all
    trace_id, span_id = ids(span)
    assert trace_id == TRACE
    seen = await worker.result(job_id)
    here = f"00-{trace_id}-{span_id}-01"
    assert seen == {
        "mine": here,
        "carried": {"traceparent": here, "tracestate": "vendor=x"},
        "logged": TRACE,
    }
    assert span.parent is not None
    assert (span.parent.span_id, span.parent.is_remote) == (0x00F067AA0BA902B7, True)
    assert [link.context.span_id for link in span.links] == [0x00F067AA0BA902B7]
    queue = worker.keys.queue
    found = attributes(span)
    assert found.pop("messaging.message.id").endswith("-0")
    assert (span.name, span.kind) == (f"process {queue}", SpanKind.CONSUMER)
    assert span.status.status_code is StatusCode.UNSET
    assert found == {
        "messaging.system": "redis",
        "messaging.destination.name": queue,
        "messaging.consumer.group.name": worker.worker.group,
        "messaging.client.id": worker.worker.consumer,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "sluice.job.id": job_id,
        "sluice.job.task": "chat",
        "sluice.job.attempt": 1,
        "sluice.job.outcome": "done",
    }


class Broken(JobError):
    kind = "broken"


@pytest.mark.fakeredis_only
async def test_a_failed_or_lost_attempt_has_an_error_in_its_span(
    make_worker: MakeWorker, spans: Spans
) -> None:
    async def fail(context: Any, payload: Any) -> None:
        raise Broken("no good")

    worker = make_worker(fail)
    outcome, _ = await worker.execute()
    assert outcome is Outcome.ERROR
    attempt = await worker.attempt()
    await worker.client.delete(worker.keys.job(attempt.lease.job_id))
    assert await worker.executor.run(attempt) is Outcome.LOST
    failed, lost = spans.all
    assert (failed.parent, list(failed.links)) == (None, [])  # its request was not traced
    assert attributes(failed)["error.type"] == "broken"
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "no good")
    assert attributes(lost)["error.type"] == "lost"


async def test_a_trace_reaches_the_handler_without_an_sdk(make_worker: MakeWorker) -> None:
    """An invalid one is ignored."""
    assert tracing.tracer is None
    worker = make_worker(answer_async)
    traced = await worker.run_job(options=TRACED)
    untraced = [await worker.run_job()]
    for junk in ("junk", "00-0-0-0", "\u00e9" * 55):
        untraced.append(await worker.run_job(options=JobOptions(traceparent=junk).to_json()))
    await worker.stop()
    assert await worker.result(traced) == {
        "mine": PARENT,
        "carried": {"traceparent": PARENT, "tracestate": "vendor=x"},
        "logged": TRACE,
    }
    for job_id in untraced:
        assert await worker.result(job_id) == {"mine": None, "carried": {}, "logged": ""}
    assert otel.get_current_span() is otel.INVALID_SPAN


@pytest.mark.fakeredis_only
async def test_a_broken_tracer_does_not_fail_the_job(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "tracer", object())
    caplog.set_level(logging.DEBUG)
    outcome, _ = await make_worker(answer_async).execute()
    assert outcome is Outcome.DONE
    assert "attempt is not traced" in caplog.text


@pytest.mark.fakeredis_only
async def test_log_lines_of_a_job_name_it(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """Every log line of an attempt has job, task, attempt and trace."""
    caplog.set_level(logging.DEBUG, logger="sluice.worker")
    found: list[tuple[str, str, dict[str, str]]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((record.levelname, record.getMessage(), logs.context_fields(record)))

    async def fail(context: Any, payload: Any) -> None:
        if context.attempt == 1:
            raise TransientError("busy")
        raise Broken("no good")

    keep = Keep()
    logging.getLogger("sluice.worker.execution.attempt_log").addHandler(keep)
    try:
        worker = make_worker(registry=registry_of(fail))
        job_id = await worker.run_job(b"error", options=TRACED)
        await worker.stop()
    finally:
        logging.getLogger("sluice.worker.execution.attempt_log").removeHandler(keep)
    assert [(level, text.partition(":")[0].partition(";")[0]) for level, text, _ in found] == [
        ("DEBUG", "attempt 1 begins"),
        ("WARNING", "attempt 1 failed"),
        ("DEBUG", "attempt 2 begins"),
        ("WARNING", "failed in attempt 2"),
    ]
    for _, text, names in found:
        attempt = "2" if "attempt 2" in text else "1"
        about = {"job_id": job_id, "task": "chat", "attempt": attempt, "trace_id": TRACE}
        assert names == about
    assert '"message":"busy"' in found[1][1]
