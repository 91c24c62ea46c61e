"""What an attempt tells beside its events: log lines that name its job, and a span of its trace.

A job that goes well says nothing at LOG_LEVEL=info here: a line costs more than a short job. The
gateway's line about its acceptance names it. What goes wrong is always said.
"""

from __future__ import annotations

import logging

from common import codec, logs, tracing
from common.store import WorkerIdentity
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
            from worker import spans  # brings OpenTelemetry with it

            spans.enter(run, traceparent, queue, worker)
        except Exception as error:  # a job is not to suffer from who watches it
            log.debug("the attempt is not traced: %r", error)
    if log.isEnabledFor(logging.DEBUG):
        log.debug("attempt %d begins", run.lease.attempt)


def name(run: Run) -> None:
    """Let every line of this task name the job."""
    logs.job_id.set(run.lease.job_id)
    logs.task.set(run.attempt.task)
    logs.attempt.set(run.lease.attempt)


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
        from worker import spans

        spans.judge(run.span, verdict, outcome)


def end(run: Run) -> None:
    """Nothing more happens to the attempt."""
    span, run.span = run.span, None
    if span is not None:
        span.end()


def left(run: Run, outcome: Outcome) -> None:
    """The attempt came to no verdict of ours."""
    if run.span is not None:
        from worker import spans

        spans.leave(run.span, outcome)


def _short(verdict: Verdict) -> str:
    return codec.text(verdict.error)[:MAX_LOGGED_CHARS]
