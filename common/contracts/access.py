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


class KeyRecordField:
    """Members of a key's record, JSON."""

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
    """Members of one of a record's secrets: its digest, and until when it is good."""

    SHA256: Final = "sha256"
    UNTIL_MS: Final = "until_ms"


class SessionField:
    """Members of the record of somebody signed in to the dashboard, JSON."""

    KEY_ID: Final = "key_id"
    #: Digest of the key's text that was shown: when that is no good any more, nor is the session.
    KEY_SHA256: Final = "key_sha256"
    ACTIONS: Final = "actions"
    EXPIRES_MS: Final = "expires_ms"


class AuditLogField:
    """Fields of an entry of the trail."""

    WHO: Final = "who"
    NAME: Final = "name"
    ACTION: Final = "action"
    TARGET: Final = "target"
    REQUEST_ID: Final = "request_id"
    REMOTE: Final = "remote"
    TS: Final = "ts"


class AuditAction(str, Enum):
    """What leaves a trail."""

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
    #: Something that a page of the dashboard changed; the target is its method and path.
    UI_ACTION = "ui.action"


@dataclass(frozen=True)
class AccessKeys:
    """Every Redis key of access control. Workers have no business here.

    All lie under the tag of the home partition, where there are more than one; only the state of a
    key's limits lies with the jobs that they limit.
    """

    tag: str = ""

    @property
    def records(self) -> str:
        """HASH, key id to the JSON of its record; secrets only as digests."""
        return f"{self.tag}access:keys"

    @property
    def last_used(self) -> str:
        """HASH, key id to when it was last used, in milliseconds."""
        return f"{self.tag}access:used"

    @property
    def audit_log(self) -> str:
        """STREAM, what was done by whom with administrative rights; capped."""
        return f"{self.tag}access:trail"

    def session(self, digest: str) -> str:
        """STRING, JSON of a session at the dashboard, by the SHA-256 of its cookie."""
        return f"{self.tag}access:session:{digest}"

    def sessions(self, key_id: str) -> str:
        """ZSET, digests of a key's sessions by their end, in milliseconds."""
        return f"{self.tag}access:sessions:{key_id}"

    def rate(self, key_id: str) -> str:
        """STRING, when the next job of a key with a rate would be on time, in microseconds."""
        return f"{self.tag}access:rate:{key_id}"

    def active(self, key_id: str) -> str:
        """ZSET, jobs of a key with a quota that may not have ended yet, by their acceptance."""
        return f"{self.tag}access:active:{key_id}"
