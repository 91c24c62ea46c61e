"""What a run came to, for a terminal and for a program."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.plan import LEASE_MS, Fault
from chaos.run import Result
from common.contracts.jobs import EventType

#: A dead worker's job goes on within a lease and so many seconds.
RECOVERY_MARGIN_S = 2.0
_MOST_VIOLATIONS = 40


def plan_text(plan: Sequence[Fault]) -> str:
    """The plan, one fault a line."""
    return "\n".join(str(fault) for fault in plan)


def as_text(result: Result) -> str:
    """The tables."""
    rows = [*_jobs(result), *_faults(result), *_recovery(result)]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" if name else "" for name, value in rows)


def violations_text(result: Result, replay: str) -> str:
    """What was broken, where to look, and how to see it again."""
    shown = [f"VIOLATION  {violation}" for violation in result.violations[:_MOST_VIOLATIONS]]
    if more := len(result.violations) - len(shown):
        shown.append(f"… and {more} more")
    return "\n".join(
        [*shown, f"logs and data: {result.cluster.directory}", f"the same faults again: {replay}"]
    )


def save(result: Result, path: Path, seed: int, replay: str) -> None:
    """Everything as JSON."""
    story: dict[str, Any] = {
        "seed": seed,
        "replay": replay,
        "redis": result.redis_version,
        "summary": dict(row for row in [*_jobs(result), *_faults(result), *_recovery(result)]),
        "violations": [violation._asdict() for violation in result.violations],
        "timeline": [dataclasses.asdict(deed) for deed in result.nemesis.deeds],
        "recoveries": [dataclasses.asdict(recovery) for recovery in result.recoveries],
        "suspects": _suspects(result),
    }
    path.write_text(json.dumps(story, indent=1, default=str) + "\n")


def _jobs(result: Result) -> list[tuple[str, str]]:
    history = result.history
    accepted = list(history.accepted)
    answers: Counter[str] = Counter()
    for posted in history.posted:
        answers.update(posted.answers)
    records = [history.records[posted.job_id] for posted in accepted]
    ended = Counter(record.status for record in records)
    attempts = sum(len(record.of_type(EventType.RUNNING)) for record in records)
    watched = history.watched
    return [
        ("jobs posted", f"{len(history.posted)}"),
        ("accepted", f"{len(accepted)}"),
        ("ended", ", ".join(f"{count} {status}" for status, count in ended.most_common())),
        ("attempts", f"{attempts}"),
        ("released, retried", ", ".join(
            str(sum(len(record.of_type(kind)) for record in records))
            for kind in (EventType.RELEASED, EventType.RETRY)
        )),
        ("dead letters", f"{sum(history.leftovers.letters.values())}"),
        ("answers", ", ".join(f"{count} x {name}" for name, count in answers.most_common())),
        ("watched", f"{len(watched)} over {sum(one.connections for one in watched)} connections, "
                    f"{sum(len(one.ids) for one in watched)} events"),
        ("all ended after the faults within", f"{result.settled_s:.1f} s"),
        ("", ""),
    ]  # fmt: skip


def _faults(result: Result) -> list[tuple[str, str]]:
    missed = sum(bool(deed.missed) for deed in result.nemesis.deeds)
    lost = sum(proxy.lost_replies for proxy in result.cluster.proxies.values())
    starts = sum(member.starts - 1 for member in result.cluster.members.values())
    return [
        *((kind.value, str(count)) for kind, count in result.nemesis.by_kind.most_common()),
        ("faults without effect", f"{missed}"),
        ("replies lost", f"{lost}"),
        ("processes restarted", f"{starts}"),
        ("", ""),
    ]


def _recovery(result: Result) -> list[tuple[str, str]]:
    """How soon a dead worker's jobs went on. Told, not judged: clocks are for quiet machines."""
    calm = [recovery.seconds for recovery in result.recoveries if recovery.calm]
    other = [recovery.seconds for recovery in result.recoveries if not recovery.calm]
    return [
        ("kill -9 to next attempt, nothing else wrong", _delays(calm)),
        ("kill -9 to next attempt, among other faults", _delays(other)),
    ]


def _delays(seconds: list[float]) -> str:
    if not seconds:
        return "no job was cut short"
    bound_s = LEASE_MS / 1000 + RECOVERY_MARGIN_S
    within = sum(second <= bound_s for second in seconds)
    return (
        f"{len(seconds)} jobs, p50 {statistics.median(seconds):.2f} s, max {max(seconds):.2f} s, "
        f"{within} within {bound_s:.1f} s (a lease and {RECOVERY_MARGIN_S:.0f} s)"
    )


def _suspects(result: Result) -> list[dict[str, Any]]:
    """The whole story of every job that a violation names."""
    named = " ".join(violation.subject for violation in result.violations)
    return [
        {
            "order": dataclasses.asdict(posted.order),
            "posted": {name: value for name, value in vars(posted).items() if name != "order"},
            "record": dataclasses.asdict(result.history.records[posted.job_id]),
            "stints": [
                dataclasses.asdict(stint)
                for stint in result.history.stints
                if stint.job_id == posted.job_id
            ],
        }
        for posted in result.history.accepted
        if posted.job_id in named
    ]
