"""What an audit found, and where it is kept: the last one, and the sums of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from common import codec
from common.contracts import values_of
from common.contracts.jobs import AuditField, JobField, JobKeys
from common.errors import StoreUnavailable
from common.jobs.audit.rules import LOST_JOB_RULES, Rule
from common.jobs.store import read_reply
from common.redis.connection import TRANSIENT_ERRORS

#: Violations that the stored report names; all of them are counted.
FOUND_KEPT = 100
#: Seconds the sums are kept after the last audit.
KEPT_S = 30 * 24 * 3600
#: What to ask HMGET for, in the order that `AuditRecord.from_values` wants.
AUDIT_FIELDS: tuple[str, ...] = values_of(AuditField)


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise, seen twice."""

    job_id: str
    rule: Rule
    detail: str

    def view(self) -> dict[str, str]:
        """As JSON for people and programs."""
        return {
            JobField.JOB_ID: self.job_id,
            "rule": self.rule.value,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class AuditReport:
    """One audit of all jobs."""

    #: When it began, by the clock of Redis, in milliseconds.
    ts: int
    jobs_checked: int
    duration_ms: int
    #: The first of them; `violations_total` counts all.
    violations: tuple[Violation, ...] = ()
    violations_total: int = 0
    #: False where the queue was too long to be looked at whole.
    complete: bool = True

    @property
    def lost(self) -> int:
        """Unfinished jobs that nobody was going to finish, of the violations that are named."""
        return sum(violation.rule in LOST_JOB_RULES for violation in self.violations)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """What Redis keeps of audits; zeros before the first."""

    last_ts: int = 0
    last_jobs: int = 0
    last_violations: int = 0
    last_ms: int = 0
    last_found: bytes = b"[]"
    jobs_total: int = 0
    violations_total: int = 0
    lost_total: int = 0

    @classmethod
    def from_values(cls, values: Sequence[bytes | None]) -> AuditRecord:
        by_field = dict(zip(values_of(AuditField), values))

        def number(field: str) -> int:
            return codec.parse_int(by_field.get(field) or b"0")

        return cls(
            last_ts=number(AuditField.LAST_TS),
            last_jobs=number(AuditField.LAST_JOBS),
            last_violations=number(AuditField.LAST_VIOLATIONS),
            last_ms=number(AuditField.LAST_MS),
            last_found=by_field.get(AuditField.LAST_FOUND) or b"[]",
            jobs_total=number(AuditField.JOBS_TOTAL),
            violations_total=number(AuditField.VIOLATIONS_TOTAL),
            lost_total=number(AuditField.LOST_TOTAL),
        )


async def store_report(client: Redis, keys: JobKeys, report: AuditReport) -> None:
    """Keep a report as the last one and add it to the sums; raises StoreUnavailable."""
    found = [violation.view() for violation in report.violations[:FOUND_KEPT]]
    last: dict[Any, Any] = {
        AuditField.LAST_TS: report.ts,
        AuditField.LAST_JOBS: report.jobs_checked,
        AuditField.LAST_VIOLATIONS: report.violations_total,
        AuditField.LAST_MS: report.duration_ms,
        AuditField.LAST_FOUND: codec.dumps(found),
    }
    jobs, violations = AuditField.JOBS_TOTAL, AuditField.VIOLATIONS_TOTAL
    try:
        async with client.pipeline(transaction=True) as pipe:
            pipe.hset(keys.audit, mapping=last)
            pipe.hincrby(keys.audit, jobs, report.jobs_checked)
            pipe.hincrby(keys.audit, violations, report.violations_total)
            pipe.hincrby(keys.audit, AuditField.LOST_TOTAL, report.lost)
            pipe.expire(keys.audit, KEPT_S)
            await pipe.execute()
    except (RedisError, *TRANSIENT_ERRORS) as error:
        raise StoreUnavailable(str(error)) from error


async def load_record(client: Redis, keys: JobKeys) -> AuditRecord:
    """What is kept of audits; raises StoreUnavailable."""
    values = await read_reply(client.hmget(keys.audit, list(AUDIT_FIELDS)))
    return AuditRecord.from_values(values or ())
