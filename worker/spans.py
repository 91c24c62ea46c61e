"""An attempt's part of a trace. Imported by the first attempt that has one: it needs OpenTelemetry,
which a worker without traces does without."""

from __future__ import annotations

from opentelemetry import context as otel_context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from common import codec, logs, tracing
from common.contracts.jobs import DataField
from common.store import WorkerIdentity
from common.tracing import Trace
from worker.outcome import Outcome
from worker.run import Run
from worker.verdict import Verdict

#: Longer errors are cut; the job has them whole.
MAX_TOLD_CHARS = 300


def enter(run: Run, traceparent: str | None, queue: str, worker: WorkerIdentity) -> None:
    """The attempt is part of its request's trace; a span begins where somebody collects them."""
    state = run.attempt.wishes.options.tracestate
    trace = None if traceparent is None else tracing.parse(traceparent, [state] if state else ())
    if tracing.tracer is not None:
        run.span = _span(run, trace, queue, worker)
        trace = Trace.of(run.span) or trace
        # For the rest of the task, which is the attempt's own: nobody has to leave it again.
        otel_context.attach(tracing.beneath(run.span))
    elif trace is not None:
        otel_context.attach(tracing.under(trace))
    if trace is not None:
        run.context.traceparent = trace.traceparent
        logs.trace_id.set(trace.trace_id)


def _span(run: Run, trace: Trace | None, queue: str, worker: WorkerIdentity) -> Span:
    assert tracing.tracer is not None
    return tracing.tracer.start_span(
        f"process {queue}",
        tracing.under(trace),
        SpanKind.CONSUMER,
        {
            tracing.MESSAGING_SYSTEM: tracing.REDIS,
            tracing.DESTINATION: queue,
            tracing.CONSUMER_GROUP: worker.group,
            tracing.CLIENT_ID: worker.consumer,
            tracing.OPERATION_NAME: "process",
            tracing.OPERATION_TYPE: "process",
            tracing.MESSAGE_ID: run.lease.message_id,
            tracing.JOB: run.lease.job_id,
            tracing.TASK: run.attempt.task,
            tracing.ATTEMPT: run.lease.attempt,
        },
        links=() if trace is None else (Link(trace.remote()),),
    )


def judge(span: Span, verdict: Verdict, outcome: Outcome) -> None:
    """How the attempt ended."""
    span.set_attribute(tracing.OUTCOME, outcome.value)
    if verdict.error:
        error = codec.loads(verdict.error)
        span.set_attribute(tracing.ERROR_TYPE, str(error[DataField.KIND.value]))
        span.set_status(StatusCode.ERROR, str(error[DataField.MESSAGE.value])[:MAX_TOLD_CHARS])


def leave(span: Span, outcome: Outcome) -> None:
    """The attempt came to no verdict of ours."""
    span.set_attribute(tracing.OUTCOME, outcome.value)
    if outcome is not Outcome.RELEASED:
        span.set_attribute(tracing.ERROR_TYPE, outcome.value)
        span.set_status(StatusCode.ERROR)
