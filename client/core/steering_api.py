"""Requests about the machine itself: numbers, queues, workers, dead letters, audits, the trail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from client.core.calls import NDJSON, Answer, Call, call, segment
from client.core.models import Stats, Status, WhoAmI, Worker
from client.core.pages import Page
from client.core.paging import reading_page
from client.core.reading import (
    member,
    model,
    models,
    nothing,
    raw_object,
    reading,
    reading_list,
    text_member,
)
from client.core.steering_models import (
    AuditReport,
    DeadLetter,
    DeadLetterGroup,
    DeadLetterGroups,
    Redriven,
    TrailEntry,
    Violation,
)
from client.errors import BadAnswer, Broken, Unavailable

LIVE = "/v1/stream"
AUDIT_LINE_S = 30.0
_LETTERS = "/v1/dlq"


def stats(span: str | None = None, columns: Sequence[str] = ()) -> Call[Stats]:
    """Numbers over the last `10m`, `1h`, `6h`, `24h` or `14d`."""
    query = {"range": span, "columns": ",".join(columns) or None}
    return call("GET", "/v1/stats", reading(Stats), query=query)


def queues() -> Call[dict[str, Any]]:
    """The job queue, and BullMQ's."""
    return call("GET", "/v1/queues", raw_object)


def pause(name: str, why: str | None = None) -> Call[dict[str, Any]]:
    """Workers take nothing new from it; what runs goes on, what comes waits."""
    body = None if why is None else {"why": why}
    path = f"/v1/queues/{segment(name)}/pause"
    return call("POST", path, raw_object, body=body, repeatable=True)


def resume(name: str) -> Call[dict[str, Any]]:
    """They take jobs again."""
    return call("POST", f"/v1/queues/{segment(name)}/resume", raw_object, repeatable=True)


def workers() -> Call[list[Worker]]:
    """All who live."""
    return call("GET", "/v1/workers", reading_list(Worker, "workers"))


def status() -> Call[Status]:
    """How all parts are; a 503 is an answer, too."""
    return replace(call("GET", "/v1/status", reading(Status)), also_good=(503,))


def whoami() -> Call[WhoAmI]:
    """Whom the gateway takes us for."""
    return call("GET", "/v1/whoami", reading(WhoAmI))


def trail(limit: int | None = None, before: str | None = None) -> Call[Page[TrailEntry]]:
    """What was done with administrative rights, newest first."""
    query = {"limit": limit, "before": before}
    return call("GET", "/v1/trail", reading_page(TrailEntry), query=query)


def dead_letters(
    reason: str | None = None,
    fingerprint: str | None = None,
    limit: int | None = None,
    before: str | None = None,
) -> Call[Page[DeadLetter]]:
    """Messages that came to nothing, newest first."""
    query = {"reason": reason, "fingerprint": fingerprint, "limit": limit, "before": before}
    return call("GET", _LETTERS, reading_page(DeadLetter), query=query)


def dead_letter(letter_id: str) -> Call[DeadLetter]:
    """One of them."""
    return call("GET", f"{_LETTERS}/{segment(letter_id)}", reading(DeadLetter))


def dead_letter_groups() -> Call[DeadLetterGroups]:
    """By how they failed, the largest group first."""
    return call("GET", f"{_LETTERS}/groups", _groups)


def _groups(answer: Answer) -> DeadLetterGroups:
    told = answer.json()
    groups = models(DeadLetterGroup, member(told, "groups"))
    total, seen = member(told, "total"), member(told, "looked_at")
    if not isinstance(total, int) or not isinstance(seen, int):
        raise BadAnswer("the gateway's answer has no numbers where they belong; check the URL")
    return DeadLetterGroups(groups, total, seen, bool(member(told, "complete")))


def redrive(
    ids: Sequence[str] | None = None,
    *,
    reason: str | None = None,
    fingerprint: str | None = None,
    everything: bool = False,
    limit: int | None = None,
    rate_per_s: float | None = None,
    dry_run: bool = False,
) -> Call[Redriven]:
    """Jobs again, of exactly one of: these, those of a reason, those of a group, all."""
    body = {
        "ids": None if ids is None else list(ids),
        "reason": reason,
        "fingerprint": fingerprint,
        "all": everything or None,
        "limit": limit,
        "rate_per_s": rate_per_s,
        "dry_run": dry_run,
    }
    given = {name: value for name, value in body.items() if value is not None}
    # Repeated for the same ids it answers with the same jobs; for a group it would go on to the
    # next ones where there are more than its limit.
    repeatable = ids is not None or dry_run
    path = f"{_LETTERS}/redrive"
    return call("POST", path, reading(Redriven), body=given, repeatable=repeatable)


def redrive_one(letter_id: str) -> Call[str]:
    """A job again; the answer is its id, the same when it is repeated."""
    path = f"{_LETTERS}/{segment(letter_id)}/redrive"
    return call("POST", path, lambda answer: text_member(answer.json(), "job_id"), repeatable=True)


def purge(
    letter_id: str | None = None,
    *,
    reason: str | None = None,
    fingerprint: str | None = None,
    everything: bool = False,
) -> Call[int]:
    """They are gone; the answer is how many were."""
    if letter_id is not None:
        return call("DELETE", f"{_LETTERS}/{segment(letter_id)}", lambda answer: 1)
    query = {"reason": reason, "fingerprint": fingerprint, "all": everything or None}
    return call("DELETE", _LETTERS, _purged, query=query)


def _purged(answer: Answer) -> int:
    number = member(answer.json(), "purged")
    return number if isinstance(number, int) else 0


def last_audit() -> Call[dict[str, Any]]:
    """What the last audit found, and all of them together."""
    return call("GET", "/v1/audit", raw_object)


def audit() -> Call[None]:
    """An audit, now; its answer is a line for each thing that there is to say."""
    return call("POST", "/v1/audit", nothing, headers={"Accept": NDJSON}, repeatable=True)


class AuditLines:
    """An audit as it goes: lines in, and the report when it is there."""

    def __init__(self) -> None:
        self._found: list[Violation] = []
        self.report: AuditReport | None = None

    def take(self, line: bytes) -> dict[str, Any]:
        """One line of it, read; raises what went wrong."""
        try:
            told = json.loads(line)
            kind = told["type"]
        except (ValueError, KeyError, TypeError):
            raise BadAnswer("the gateway's audit is none; check the URL") from None
        if kind == "violation":
            self._found.append(model(Violation, told))
        elif kind == "failed":
            detail = str(told.get("detail", ""))
            raise Unavailable(f"the audit failed: {detail}", 503, "audit_failed", detail)
        elif kind == "report":
            self.report = replace(model(AuditReport, told), violations=tuple(self._found))
        line_of: dict[str, Any] = told
        return line_of

    def ended(self) -> AuditReport:
        """The report; raises where the gateway broke off before it."""
        if self.report is None:
            raise Broken("the gateway broke off the audit; try again")
        return self.report
