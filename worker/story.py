"""What an attempt tells beside its events: log lines that name its job, and a span of its trace.

A job that goes well says nothing at LOG_LEVEL=info here: a line costs more than a short job. The
gateway's line about its acceptance names it. What goes wrong is always said.
"""

from __future__ import annotations

import logging

from opentelemetry import context as otel_context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from common import codec, logs, tracing
from common.contracts.jobs import DataField
from common.store import WorkerIdentity
from common.tracing import Trace
from worker.outcome import Outcome
from worker.run import Run
from worker.verdict import Retry, Verdict

log = logging.getLogger(__name__)

#: Longer errors are cut in the log; the job has them whole.
MAX_LOGGED_CHARS = 300


def begin(run: Run, queue: str, worker: WorkerIdentity) -> None:
    """From here on every line of this task names the job; a span begins if there is a trace."""
    name(run)
    traceparent = run.attempt.wishes.options.traceparent
    if traceparent is not None or tracing.tracer is not None:
        try:
            _enter_trace(run, traceparent, queue, worker)
        except Exception as error:  # a job is not to suffer from who watches it
            log.debug("the attempt is not traced: %r", error)
    if log.isEnabledFor(logging.DEBUG):
        log.debug("attempt %d begins", run.lease.attempt)


def name(run: Run) -> None:
    """Let every line of this task name the job."""
    logs.job_id.set(run.lease.job_id)
    logs.task.set(run.attempt.task)
    logs.attempt.set(run.lease.attempt)


def _enter_trace(run: Run, traceparent: str | None, queue: str, worker: WorkerIdentity) -> None:
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


def concluded(run: Run, verdict: Verdict, outcome: Outcome) -> None:
    """The job has ended, or gets another attempt."""
    attempt = run.lease.attempt
    if outcome is Outcome.DONE:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("done by attempt %d in %d ms", attempt, run.context.elapsed_ms)
    elif outcome is Outcome.CANCELED:
        log.info("canceled during attempt %d", attempt)
    elif isinstance(verdict, Retry):
        level = logging.INFO if verdict.free else logging.WARNING
        how = "could not be done just now" if verdict.free else "failed"
        delay_s = verdict.delay_ms / 1000
        log.log(
            level, "attempt %d %s; the next one in %.1f s: %s", attempt, how, delay_s,
            _short(verdict),
        )  # fmt: skip
    else:
        log.warning("ended in error by attempt %d: %s", attempt, _short(verdict))
    if run.span is not None:
        _judge(run.span, verdict, outcome)


def end(run: Run) -> None:
    """Nothing more happens to the attempt."""
    span, run.span = run.span, None
    if span is not None:
        span.end()


def left(run: Run, outcome: Outcome) -> None:
    """The attempt came to no verdict of ours."""
    if run.span is not None:
        run.span.set_attribute(tracing.OUTCOME, outcome.value)
        if outcome is not Outcome.RELEASED:
            run.span.set_attribute(tracing.ERROR_TYPE, outcome.value)
            run.span.set_status(StatusCode.ERROR)


def _judge(span: Span, verdict: Verdict, outcome: Outcome) -> None:
    span.set_attribute(tracing.OUTCOME, outcome.value)
    if verdict.error:
        error = codec.loads(verdict.error)
        span.set_attribute(tracing.ERROR_TYPE, str(error[DataField.KIND.value]))
        span.set_status(StatusCode.ERROR, str(error[DataField.MESSAGE.value])[:MAX_LOGGED_CHARS])


def _short(verdict: Verdict) -> str:
    return codec.text(verdict.error)[:MAX_LOGGED_CHARS]
