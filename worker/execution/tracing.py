"""The span of an attempt. Imported by the first attempt with a trace, because it needs
OpenTelemetry, which a worker without traces should not load."""

from __future__ import annotations

from opentelemetry import context as otel_context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from sluice.common import codec
from sluice.common.contracts.jobs import DataField
from sluice.common.jobs.store import WorkerIdentity
from sluice.common.observability import logs, tracing
from sluice.common.observability.tracing import TraceContext
from sluice.worker.execution.attempt import Attempt
from sluice.worker.execution.outcome import AttemptDecision, Outcome

#: Longer errors are cut; the job has the full text.
MAX_SPAN_ERROR_CHARS = 300


def start_span(
    attempt: Attempt, traceparent: str | None, queue: str, worker: WorkerIdentity
) -> None:
    """Continue the trace of the request, with a new span if traces are exported."""
    state = attempt.job.request.options.tracestate
    trace = (
        None if traceparent is None else tracing.parse_trace(traceparent, [state] if state else ())
    )
    if tracing.tracer is not None:
        attempt.span = _create_span(attempt, trace, queue, worker)
        trace = TraceContext.from_span(attempt.span) or trace
        # Attached for the rest of the task, which runs only this attempt; never detached.
        otel_context.attach(tracing.context_with_span(attempt.span))
    elif trace is not None:
        otel_context.attach(tracing.context_from_trace(trace))
    if trace is not None:
        attempt.context.traceparent = trace.traceparent
        logs.trace_id.set(trace.trace_id)


def _create_span(
    attempt: Attempt, trace: TraceContext | None, queue: str, worker: WorkerIdentity
) -> Span:
    assert tracing.tracer is not None
    return tracing.tracer.start_span(
        f"process {queue}",
        tracing.context_from_trace(trace),
        SpanKind.CONSUMER,
        {
            tracing.MESSAGING_SYSTEM: tracing.REDIS,
            tracing.DESTINATION: queue,
            tracing.CONSUMER_GROUP: worker.group,
            tracing.CLIENT_ID: worker.consumer,
            tracing.OPERATION_NAME: "process",
            tracing.OPERATION_TYPE: "process",
            tracing.MESSAGE_ID: attempt.lease.message_id,
            tracing.JOB: attempt.lease.job_id,
            tracing.TASK: attempt.job.task,
            tracing.ATTEMPT: attempt.lease.attempt,
        },
        links=() if trace is None else (Link(trace.to_span_context()),),
    )


def record_outcome(span: Span, decision: AttemptDecision, outcome: Outcome) -> None:
    span.set_attribute(tracing.OUTCOME, outcome.value)
    if decision.error:
        error = codec.loads(decision.error)
        span.set_attribute(tracing.ERROR_TYPE, str(error[DataField.KIND]))
        span.set_status(StatusCode.ERROR, str(error[DataField.MESSAGE])[:MAX_SPAN_ERROR_CHARS])


def record_unfinished(span: Span, outcome: Outcome) -> None:
    """Record that the attempt ended without a decision: lost, released or left pending."""
    span.set_attribute(tracing.OUTCOME, outcome.value)
    if outcome is not Outcome.RELEASED:
        span.set_attribute(tracing.ERROR_TYPE, outcome.value)
        span.set_status(StatusCode.ERROR)
