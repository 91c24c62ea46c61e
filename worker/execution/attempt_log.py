"""Log lines and the trace span of an attempt.

A job that succeeds logs nothing at LOG_LEVEL=info here, because a line costs more than a short job.
The gateway's access log has a line for it. Failures are always logged.
"""

from __future__ import annotations

import logging

from sluice.common import codec
from sluice.common.jobs.store import WorkerIdentity
from sluice.common.observability import logs, tracing
from sluice.worker.execution.attempt import Attempt
from sluice.worker.execution.outcome import AttemptDecision, Outcome, Retry

log = logging.getLogger(__name__)

#: Longer errors are cut in the log; the job has the full text.
MAX_LOGGED_CHARS = 300


def start(attempt: Attempt, queue: str, worker: WorkerIdentity) -> None:
    """Add the job to every log line of the current task, and start a span if there is a trace."""
    set_log_context(attempt)
    traceparent = attempt.job.request.options.traceparent
    if traceparent is not None or tracing.tracer is not None:
        try:
            from sluice.worker.execution import tracing as spans  # imports OpenTelemetry

            spans.start_span(attempt, traceparent, queue, worker)
        except Exception as error:  # a failure of tracing must not fail the job
            log.debug("attempt is not traced: %r", error)
    if log.isEnabledFor(logging.DEBUG):
        log.debug("attempt %d begins", attempt.lease.attempt)


def set_log_context(attempt: Attempt) -> None:
    """Add the job to every log line of the current task."""
    logs.job_id.set(attempt.lease.job_id)
    logs.task.set(attempt.job.task)
    logs.attempt.set(attempt.lease.attempt)


def log_outcome(attempt: Attempt, decision: AttemptDecision, outcome: Outcome) -> None:
    """Log how the attempt ended, and record it in the span."""
    number = attempt.lease.attempt
    if outcome is Outcome.DONE:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("done by attempt %d in %d ms", number, attempt.context.elapsed_ms)
    elif outcome is Outcome.CANCELED:
        log.info("canceled during attempt %d", number)
    elif isinstance(decision, Retry):
        level = logging.INFO if decision.free else logging.WARNING
        how = "postponed" if decision.free else "failed"
        delay_s = decision.delay_ms / 1000
        log.log(
            level, "attempt %d %s; the next one in %.1f s: %s", number, how, delay_s,
            _short_error(decision),
        )  # fmt: skip
    else:
        log.warning("failed in attempt %d: %s", number, _short_error(decision))
    if attempt.span is not None:
        from sluice.worker.execution import tracing as spans

        spans.record_outcome(attempt.span, decision, outcome)


def end_span(attempt: Attempt) -> None:
    span, attempt.span = attempt.span, None
    if span is not None:
        span.end()


def record_unfinished(attempt: Attempt, outcome: Outcome) -> None:
    """Record that the attempt ended without a decision: lost, released or left pending."""
    if attempt.span is not None:
        from sluice.worker.execution import tracing as spans

        spans.record_unfinished(attempt.span, outcome)


def _short_error(decision: AttemptDecision) -> str:
    return codec.decode_text(decision.error)[:MAX_LOGGED_CHARS]
