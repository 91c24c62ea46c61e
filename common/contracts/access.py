"""Who may do what: names of API keys, their limits and the trail of what was done with them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

#: How the text of every key begins, so that people and secret scanners know one when they see it.
KEY_PREFIX: Final = "sluice_"
#: Digits at the end of a job's id that say whose it is.
TAIL_DIGITS: Final = 12


class Scope(str, Enum):
    """What a key may be used for."""

    JOBS_WRITE = "jobs:write"
    JOBS_READ = "jobs:read"
    METRICS = "metrics"
    UI = "ui"
    #: Everything, for every tenant.
    ADMIN = "admin"


class RecordField(str, Enum):
    """Members of a key's record, JSON."""

    NAME = "name"
    TENANT = "tenant"
    SCOPES = "scopes"
    SECRETS = "secrets"
    CREATED_MS = "created_ms"
    EXPIRES_MS = "expires_ms"
    TASKS = "tasks"
    TOOLS = "tools"
    RATE_PER_MIN = "rate_per_min"
    BURST = "burst"
    MAX_JOBS = "max_jobs"


class SecretField(str, Enum):
    """Members of one of a record's secrets: its digest, and until when it is good."""

    SHA256 = "sha256"
    UNTIL_MS = "until_ms"


class TrailField(str, Enum):
    """Fields of an entry of the trail."""

    WHO = "who"
    NAME = "name"
    ACTION = "action"
    TARGET = "target"
    REQUEST_ID = "request_id"
    REMOTE = "remote"
    TS = "ts"


class TrailAction(str, Enum):
    """What leaves a trail."""

    KEY_CREATE = "key.create"
    KEY_ROTATE = "key.rotate"
    KEY_REVOKE = "key.revoke"
    DLQ_REDRIVE = "dlq.redrive"
    DLQ_PURGE = "dlq.purge"
    AUDIT_RUN = "audit.run"
    JOB_CANCEL = "job.cancel"


@dataclass(frozen=True)
class AccessKeys:
    """Every Redis key of access control. Workers have no business here."""

    @property
    def records(self) -> str:
        """HASH, key id to the JSON of its record; secrets only as digests."""
        return "access:keys"

    @property
    def used(self) -> str:
        """HASH, key id to when it was last used, in milliseconds."""
        return "access:used"

    @property
    def trail(self) -> str:
        """STREAM, what was done by whom with administrative rights; capped."""
        return "access:trail"

    def rate(self, key_id: str) -> str:
        """STRING, when the next job of a key with a rate would be on time, in microseconds."""
        return f"access:rate:{key_id}"

    def active(self, key_id: str) -> str:
        """ZSET, jobs of a key with a quota that may not have ended yet, by their acceptance."""
        return f"access:active:{key_id}"
