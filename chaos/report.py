"""The report of a run, as text and as JSON."""

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
from sluice.common.contracts.jobs import EventType

#: A dead worker's job should continue within a lease and this many seconds.
RECOVERY_MARGIN_S = 2.0
_MAX_VIOLATIONS = 40


def plan_text(plan: Sequence[Fault]) -> str:
    return "\n".join(str(fault) for fault in plan)


def as_text(result: Result) -> str:
    rows = [*_jobs(result), *_faults(result), *_recovery(result)]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" if name else "" for name, value in rows)


def violations_text(result: Result, replay: str) -> str:
    """Violations, the directory of the logs, and the command to reproduce the run."""
    shown = [f"VIOLATION  {violation}" for violation in result.violations[:_MAX_VIOLATIONS]]
    if more := len(result.violations) - len(shown):
        shown.append(f"… and {more} more")
    return "\n".join(
        [*shown, f"logs and data: {result.cluster.directory}", f"to reproduce: {replay}"]
    )


def save(result: Result, path: Path, seed: int, replay: str) -> None:
    report: dict[str, Any] = {
        "seed": seed,
        "replay": replay,
        "redis": result.redis_version,
        "summary": dict(row for row in [*_jobs(result), *_faults(result), *_recovery(result)]),
        "violations": [violation._asdict() for violation in result.violations],
        "timeline": [dataclasses.asdict(injected) for injected in result.nemesis.injected_faults],
        "recoveries": [dataclasses.asdict(recovery) for recovery in result.recoveries],
        "suspects": _suspects(result),
    }
    path.write_text(json.dumps(report, indent=1, default=str) + "\n")


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
        ("dead letters", f"{sum(history.leftovers.dead_letters_by_job.values())}"),
        ("answers", ", ".join(f"{count} x {name}" for name, count in answers.most_common())),
        ("watched", f"{len(watched)} over {sum(one.connections for one in watched)} connections, "
                    f"{sum(len(one.ids) for one in watched)} events"),
        ("all jobs ended after the faults within", f"{result.settled_s:.1f} s"),
        ("", ""),
    ]  # fmt: skip


def _faults(result: Result) -> list[tuple[str, str]]:
    skipped = sum(bool(injected.skipped) for injected in result.nemesis.injected_faults)
    lost = sum(proxy.lost_replies for proxy in result.cluster.proxies.values())
    starts = sum(member.starts - 1 for member in result.cluster.members.values())
    return [
        *((kind.value, str(count)) for kind, count in result.nemesis.by_kind.most_common()),
        ("faults without effect", f"{skipped}"),
        ("replies lost", f"{lost}"),
        ("processes restarted", f"{starts}"),
        ("", ""),
    ]


def _recovery(result: Result) -> list[tuple[str, str]]:
    """Time until the jobs of a killed worker continued. Not a rule, because it depends on the
    machine.
    """
    calm = [recovery.seconds for recovery in result.recoveries if recovery.calm]
    other = [recovery.seconds for recovery in result.recoveries if not recovery.calm]
    return [
        ("kill -9 to next attempt, no other fault", _delays(calm)),
        ("kill -9 to next attempt, with other faults", _delays(other)),
    ]


def _delays(seconds: list[float]) -> str:
    if not seconds:
        return "no job was interrupted"
    bound_s = LEASE_MS / 1000 + RECOVERY_MARGIN_S
    within = sum(second <= bound_s for second in seconds)
    return (
        f"{len(seconds)} jobs, p50 {statistics.median(seconds):.2f} s, max {max(seconds):.2f} s, "
        f"{within} within {bound_s:.1f} s (a lease and {RECOVERY_MARGIN_S:.0f} s)"
    )


def _suspects(result: Result) -> list[dict[str, Any]]:
    """All data about each job with a violation."""
    subjects = " ".join(violation.subject for violation in result.violations)
    return [
        {
            "order": dataclasses.asdict(posted.order),
            "posted": {name: value for name, value in vars(posted).items() if name != "order"},
            "record": dataclasses.asdict(result.history.records[posted.job_id]),
            "runs": [
                dataclasses.asdict(run)
                for run in result.history.runs
                if run.job_id == posted.job_id
            ],
        }
        for posted in result.history.accepted
        if posted.job_id in subjects
    ]
