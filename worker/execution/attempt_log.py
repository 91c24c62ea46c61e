"""What an attempt tells beside its events: log lines that name its job, and a span of its trace.

A job that goes well says nothing at LOG_LEVEL=info here: a line costs more than a short job. The
gateway's line about its acceptance names it. What goes wrong is always said.
"""

from __future__ import annotations

import logging

from common import codec
from common.jobs.store import WorkerIdentity
from common.observability import logs, tracing
from worker.execution.attempt import Attempt
from worker.execution.outcome import AttemptDecision, Outcome, Retry

log = logging.getLogger(__name__)

#: Longer errors are cut in the log; the job has them whole.
MAX_LOGGED_CHARS = 300


def start(attempt: Attempt, queue: str, worker: WorkerIdentity) -> None:
    """From here on every line of this task names the job; a span begins if there is a trace."""
    set_log_context(attempt)
    traceparent = attempt.job.request.options.traceparent
    if traceparent is not None or tracing.tracer is not None:
        try:
            from worker.execution import tracing as spans  # brings OpenTelemetry with it

            spans.start_span(attempt, traceparent, queue, worker)
        except Exception as error:  # a job is not to suffer from who watches it
            log.debug("the attempt is not traced: %r", error)
    if log.isEnabledFor(logging.DEBUG):
        log.debug("attempt %d begins", attempt.lease.attempt)


def set_log_context(attempt: Attempt) -> None:
    """Let every line of this task name the job."""
    logs.job_id.set(attempt.lease.job_id)
    logs.task.set(attempt.job.task)
    logs.attempt.set(attempt.lease.attempt)


def log_outcome(attempt: Attempt, decision: AttemptDecision, outcome: Outcome) -> None:
    """The job has ended, or gets another attempt."""
    number = attempt.lease.attempt
    if outcome is Outcome.DONE:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("done by attempt %d in %d ms", number, attempt.context.elapsed_ms)
    elif outcome is Outcome.CANCELED:
        log.info("canceled during attempt %d", number)
    elif isinstance(decision, Retry):
        level = logging.INFO if decision.free else logging.WARNING
        how = "could not be done just now" if decision.free else "failed"
        delay_s = decision.delay_ms / 1000
        log.log(
            level, "attempt %d %s; the next one in %.1f s: %s", number, how, delay_s,
            _short_error(decision),
        )  # fmt: skip
    else:
        log.warning("ended in error by attempt %d: %s", number, _short_error(decision))
    if attempt.span is not None:
        from worker.execution import tracing as spans

        spans.record_outcome(attempt.span, decision, outcome)


def end_span(attempt: Attempt) -> None:
    """Nothing more happens to the attempt."""
    span, attempt.span = attempt.span, None
    if span is not None:
        span.end()


def record_unfinished(attempt: Attempt, outcome: Outcome) -> None:
    """The attempt came to no verdict of ours."""
    if attempt.span is not None:
        from worker.execution import tracing as spans

        spans.record_unfinished(attempt.span, outcome)


def _short_error(decision: AttemptDecision) -> str:
    return codec.decode_text(decision.error)[:MAX_LOGGED_CHARS]
