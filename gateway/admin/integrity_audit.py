"""`/v1/audit`: results of the last integrity check of all jobs, and a new check."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sluice.common import codec
from sluice.common.aio import cancel
from sluice.common.contracts.access import AuditAction
from sluice.common.errors import SluiceError
from sluice.common.jobs.audit.auditor import AuditNotPermitted, AuditRunning
from sluice.common.jobs.audit.report import AuditReport, Violation, load_record, store_report
from sluice.common.jobs.audit.rules import Rule
from sluice.gateway.events.response import NDJSON, SEND_TIMEOUT_S
from sluice.gateway.http.problems import Problem, ProblemView, retry_headers
from sluice.gateway.state import GatewayState, state_of

log = logging.getLogger(__name__)

#: Seconds between two lines at most.
LINE_EVERY_S = 1.0
_JOB_ID = "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"

router = APIRouter(tags=["integrity"])


class ViolationView(BaseModel):
    """A violated rule, and the job."""

    job_id: str = Field(examples=[_JOB_ID])
    rule: Rule
    detail: str = Field(examples=["status is done, but there is no terminal event"])


class LastAudit(BaseModel):
    """The last integrity check; zeros if there was none yet."""

    ts: int = Field(description="Start time, Unix milliseconds.", examples=[1760000000000])
    jobs_checked: int
    duration_ms: int
    violations_total: int
    violations: list[ViolationView] = Field(description="The first violations.")


class AuditTotals(BaseModel):
    """Totals of all integrity checks."""

    jobs_checked: int
    violations: int


class AuditView(BaseModel):
    """Results of integrity checks."""

    last: LastAudit
    totals: AuditTotals


class ProgressLine(BaseModel):
    """Progress of the check."""

    type: Literal["progress"] = "progress"
    jobs_checked: int


class ViolationLine(ViolationView):
    """The check found a violation."""

    type: Literal["violation"] = "violation"


class ReportLine(BaseModel):
    """The check has ended."""

    type: Literal["report"] = "report"
    ts: int
    jobs_checked: int
    duration_ms: int
    violations_total: int
    complete: bool = Field(description="False if the queue was too long to be read completely.")


class FailureLine(BaseModel):
    """The check could not be completed."""

    type: Literal["failed"] = "failed"
    detail: str


@router.get(
    "/v1/audit",
    summary="Get the last integrity check",
    responses={503: {"description": "Redis does not answer.", "model": ProblemView}},
)
async def get_integrity_check(request: Request) -> AuditView:
    """Returns the last integrity check, by a worker or by `POST`, and the totals of all."""
    state = state_of(request)
    record = await load_record(state.client, state.settings.keys)
    last = LastAudit(
        ts=record.last_ts,
        jobs_checked=record.last_jobs,
        duration_ms=record.last_ms,
        violations_total=record.last_violations,
        violations=_known_violations(record.last_found),
    )
    totals = AuditTotals(jobs_checked=record.jobs_total, violations=record.violations_total)
    return AuditView(last=last, totals=totals)


@router.post(
    "/v1/audit",
    summary="Check the integrity of all jobs",
    responses={
        200: {
            "description": "Lines of JSON: `progress` at least every second, `violation` for each "
            "violated rule, `report` at the end (or `failed`).",
            "content": {
                NDJSON: {
                    "example": '{"type":"progress","jobs_checked":0}\n'
                    '{"type":"report","ts":1760000000000,"jobs_checked":42,"duration_ms":12,'
                    '"violations_total":0,"complete":true}\n',
                }
            },
        },
        429: {"description": "A check is already running in this process.", "model": ProblemView},
        503: {
            "description": "Redis does not answer, or its ACL does not let the gateway read the "
            "queue (`audit_not_permitted`).",
            "model": ProblemView,
        },
    },
)
async def run_integrity_check(request: Request) -> Response:
    """Checks that every job has exactly one end and none is lost. Changes no job."""
    state = state_of(request)
    await state.access.record(request, AuditAction.AUDIT_RUN)
    audit = AuditRun(state)
    try:
        await audit.wait_started()
    except AuditRunning:
        raise Problem(
            429,
            "audit_running",
            "A check is already running in this process. Wait for its end, or read the last one "
            "with GET.",
            headers=retry_headers(5.0),
        ) from None
    except AuditNotPermitted:
        raise Problem(
            503,
            "audit_not_permitted",
            "The ACL of Redis does not let this gateway read the queue, so it cannot check it. "
            "Workers do, every AUDIT_EVERY_S: read the last result with GET. To check now, run "
            "`sluice audit --local` as root on the host.",
        ) from None
    return AuditResponse(audit)


class AuditRun:
    """Runs an integrity check in its own task and renders its lines."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._jobs_checked = 0
        self._found: list[Violation] = []
        self._answered = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> AuditReport:
        state = self._state
        report = await state.auditor.run(self._progress, self._found.append)
        try:
            await store_report(state.client, state.settings.keys, report)
        except SluiceError as error:
            log.warning("audit not stored: %s", error)
        return report

    def _progress(self, jobs_checked: int) -> None:
        self._jobs_checked = jobs_checked
        self._answered.set()

    async def wait_started(self) -> None:
        """Wait until Redis has answered; raises the reason why the check cannot start."""
        answered = asyncio.ensure_future(self._answered.wait())
        try:
            await asyncio.wait({self._task, answered}, return_when=asyncio.FIRST_COMPLETED)
            if not self._answered.is_set():
                self._task.result()
        except BaseException:
            await self.close()
            raise
        finally:
            answered.cancel()

    async def lines(self) -> AsyncIterator[bytes]:
        """Violations as soon as they are found, and progress at least every LINE_EVERY_S."""
        sent = 0
        while not self._task.done() and not self._state.hub.closing:
            yield _line(ProgressLine(jobs_checked=self._jobs_checked)) + self._violations(sent)
            sent = len(self._found)
            await asyncio.wait({self._task}, timeout=LINE_EVERY_S)
        yield self._violations(sent) + _line(self._end())

    def _violations(self, sent: int) -> bytes:
        return b"".join(_line(_view(found, ViolationLine)) for found in self._found[sent:])

    def _end(self) -> ReportLine | FailureLine:
        if not self._task.done():
            return FailureLine(detail="this process is stopping")
        try:
            report = self._task.result()
        except SluiceError as error:
            return FailureLine(detail=str(error))
        return ReportLine(
            ts=report.ts,
            jobs_checked=report.jobs_checked,
            duration_ms=report.duration_ms,
            violations_total=report.violations_total,
            complete=report.complete,
        )

    async def close(self) -> None:
        """Stop the check if it is still running."""
        await cancel(self._task)


class AuditResponse(EventSourceResponse):
    """Streams the lines; if the client disconnects, the check ends."""

    def __init__(self, audit: AuditRun) -> None:
        super().__init__(
            audit.lines(),
            headers={"Cache-Control": "no-store, no-transform"},
            media_type=NDJSON,
            ping=0,
            send_timeout=SEND_TIMEOUT_S,
        )
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._audit.close()


def _view(violation: Violation, kind: type[ViolationView] = ViolationView) -> ViolationView:
    return kind(job_id=violation.job_id, rule=violation.rule, detail=violation.detail)


def _line(line: BaseModel) -> bytes:
    return codec.dumps(line.model_dump(mode="json")) + b"\n"


def _known_violations(raw: bytes) -> list[ViolationView]:
    """The stored violations; none if the stored value is not valid."""
    try:
        stored: Any = codec.loads(raw)
        return [ViolationView.model_validate(item) for item in stored]
    except (TypeError, ValueError):
        return []
