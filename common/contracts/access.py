"""API keys, scopes, sessions and the audit log: keys, fields and values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

#: Prefix of every API key, so that people and secret scanners recognise one.
KEY_PREFIX: Final = "sluice_"
#: Digits at the end of a job id that identify the tenant.
TAIL_DIGITS: Final = 12


class Scope(str, Enum):
    """Permissions of an API key."""

    JOBS_WRITE = "jobs:write"
    JOBS_READ = "jobs:read"
    METRICS = "metrics"
    UI = "ui"
    #: All permissions, for all tenants.
    ADMIN = "admin"


class KeyRecordField:
    """Members of an API key record (JSON)."""

    NAME: Final = "name"
    TENANT: Final = "tenant"
    SCOPES: Final = "scopes"
    SECRETS: Final = "secrets"
    CREATED_MS: Final = "created_ms"
    EXPIRES_MS: Final = "expires_ms"
    TASKS: Final = "tasks"
    TOOLS: Final = "tools"
    RATE_PER_MIN: Final = "rate_per_min"
    BURST: Final = "burst"
    MAX_JOBS: Final = "max_jobs"


class KeySecretField:
    """Members of a secret in a key record: its digest, and when it expires."""

    SHA256: Final = "sha256"
    UNTIL_MS: Final = "until_ms"


class SessionField:
    """Members of a dashboard session (JSON)."""

    KEY_ID: Final = "key_id"
    #: Digest of the API key used to sign in: the session is valid only while that key is.
    KEY_SHA256: Final = "key_sha256"
    ACTIONS: Final = "actions"
    EXPIRES_MS: Final = "expires_ms"


class AuditLogField:
    """Fields of an audit log entry."""

    WHO: Final = "who"
    NAME: Final = "name"
    ACTION: Final = "action"
    TARGET: Final = "target"
    REQUEST_ID: Final = "request_id"
    REMOTE: Final = "remote"
    TS: Final = "ts"


class AuditAction(str, Enum):
    """Actions that are recorded in the audit log."""

    KEY_CREATE = "key.create"
    KEY_ROTATE = "key.rotate"
    KEY_REVOKE = "key.revoke"
    DLQ_REDRIVE = "dlq.redrive"
    DLQ_PURGE = "dlq.purge"
    AUDIT_RUN = "audit.run"
    JOB_CANCEL = "job.cancel"
    IMAGE_DELETE = "image.delete"
    QUEUE_PAUSE = "queue.pause"
    QUEUE_RESUME = "queue.resume"
    #: A change made in the dashboard; the target is the request's method and path.
    UI_ACTION = "ui.action"


@dataclass(frozen=True)
class AccessKeys:
    """Every Redis key of access control. Workers use none of them.

    With several partitions, all keys have the tag of partition 0. Only the state of a key's limits
    is stored in the partition of the jobs that they limit.
    """

    tag: str = ""

    @property
    def records(self) -> str:
        """HASH, key id to the JSON of its record; secrets only as digests."""
        return f"{self.tag}access:keys"

    @property
    def last_used(self) -> str:
        """HASH, key id to the time of its last use, in Unix milliseconds."""
        return f"{self.tag}access:used"

    @property
    def token_secret(self) -> str:
        """STRING, 32 random bytes with which gateways sign read tokens."""
        return f"{self.tag}access:read_tokens"

    @property
    def audit_log(self) -> str:
        """STREAM, administrative actions; capped."""
        return f"{self.tag}access:trail"

    def session(self, digest: str) -> str:
        """STRING, a dashboard session (JSON), by the SHA-256 of its cookie."""
        return f"{self.tag}access:session:{digest}"

    def sessions(self, key_id: str) -> str:
        """ZSET, digests of a key's sessions by expiry, in Unix milliseconds."""
        return f"{self.tag}access:sessions:{key_id}"

    def rate(self, key_id: str) -> str:
        """STRING, state of a key's rate limit: when its next job is allowed, in microseconds."""
        return f"{self.tag}access:rate:{key_id}"

    def active(self, key_id: str) -> str:
        """ZSET, jobs of a key with a quota that may not have ended, by acceptance time."""
        return f"{self.tag}access:active:{key_id}"
