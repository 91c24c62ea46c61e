"""The report of an audit, and its storage: the last report and running totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from sluice.common import codec
from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import AuditField, JobField, JobKeys
from sluice.common.errors import StoreUnavailable
from sluice.common.jobs.audit.rules import LOST_JOB_RULES, Rule
from sluice.common.jobs.store import read_reply
from sluice.common.redis.connection import TRANSIENT_ERRORS

#: Violations listed in the stored report; all are counted.
FOUND_KEPT = 100
#: Seconds the totals are kept after the last audit.
KEPT_S = 30 * 24 * 3600
#: Fields for HMGET, in the order that `AuditRecord.from_values` expects.
AUDIT_FIELDS: tuple[str, ...] = values_of(AuditField)


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated guarantee, confirmed by a second check."""

    job_id: str
    rule: Rule
    detail: str

    def view(self) -> dict[str, str]:
        return {
            JobField.JOB_ID: self.job_id,
            "rule": self.rule.value,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of one audit of all jobs."""

    #: When it began, by the clock of Redis, in Unix milliseconds.
    ts: int
    jobs_checked: int
    duration_ms: int
    #: The first violations; `violations_total` counts all.
    violations: tuple[Violation, ...] = ()
    violations_total: int = 0
    #: False if the queue was too long to be read completely.
    complete: bool = True

    @property
    def lost(self) -> int:
        """Number of listed violations that mean a lost job."""
        return sum(violation.rule in LOST_JOB_RULES for violation in self.violations)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """The stored results of audits; zeros before the first one."""

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
    """Store the report as the last one and add it to the totals; raises StoreUnavailable."""
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
    """The stored results of audits; raises StoreUnavailable."""
    values = await read_reply(client.hmget(keys.audit, list(AUDIT_FIELDS)))
    return AuditRecord.from_values(values or ())
