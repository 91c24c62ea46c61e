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


class SessionField(str, Enum):
    """Members of the record of somebody signed in to the dashboard, JSON."""

    KEY_ID = "key_id"
    #: Digest of the key's text that was shown: when that is no good any more, nor is the session.
    KEY_SHA256 = "key_sha256"
    ACTIONS = "actions"
    EXPIRES_MS = "expires_ms"


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
    def used(self) -> str:
        """HASH, key id to when it was last used, in milliseconds."""
        return f"{self.tag}access:used"

    @property
    def trail(self) -> str:
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
