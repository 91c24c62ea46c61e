"""What is known of an API key: its record in Redis, and the rules for a new one."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from common import codec
from common.access_limits import Limits, interval_us
from common.contracts.access import TAIL_DIGITS, AccessKeys, RecordField, Scope, SecretField
from common.contracts.jobs import TASKS
from common.errors import SluiceError
from common.patterns import TENANT

TOOL_NAME = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
#: More tools than this a key may not name one by one.
MOST_TOOLS = 100
LONGEST_NAME = 100
MOST_PER_MIN = 1_000_000
MOST_BURST = 1_000_000
MOST_JOBS = 100_000
#: How long a key may be good for, unless it is for ever.
LONGEST_LIFE_S = 10 * 365 * 24 * 3600
_SHA256 = re.compile(r"\A[0-9a-f]{64}\Z")
#: Compared with where there is nothing to compare with, so that both take the same time.
_NOBODYS = "0" * 64


class BadKey(SluiceError):
    """What was asked of a new key cannot be; the message says what and why."""


class Secret(NamedTuple):
    """The digest of a key's text, and until when it is good; None for as long as the key is."""

    sha256: str
    until_ms: int | None = None


@dataclass(frozen=True)
class KeySpec:
    """What a new key is to be."""

    name: str
    tenant: str = ""
    scopes: tuple[str, ...] = (Scope.JOBS_WRITE.value, Scope.JOBS_READ.value)
    expires_s: float | None = None
    tasks: tuple[str, ...] | None = None
    #: Tools its jobs may use; None for all of them, empty for none.
    tools: tuple[str, ...] | None = None
    rate_per_min: float | None = None
    burst: int | None = None
    max_jobs: int | None = None

    def __post_init__(self) -> None:
        self._check_words()
        self._check_numbers()

    def _check_words(self) -> None:
        if not 0 < len(self.name) <= LONGEST_NAME or not self.name.isprintable():
            raise BadKey(f"the name must be 1 to {LONGEST_NAME} printable characters")
        if self.tenant and not TENANT.match(self.tenant):
            raise BadKey(
                f"{self.tenant!r} is no tenant; use 1 to 63 of a-z, 0-9 and -, not first a -"
            )
        if not self.scopes:
            raise BadKey(f"a key needs a scope: {', '.join(_SCOPES)}")
        for scope in self.scopes:
            if scope not in _SCOPES:
                raise BadKey(f"{scope!r} is no scope; there are {', '.join(_SCOPES)}")
        for task in self.tasks or ():
            if task not in TASKS:
                raise BadKey(f"{task!r} is no task; there are {', '.join(TASKS)}")
        if self.tools is not None and len(self.tools) > MOST_TOOLS:
            raise BadKey(f"a key names at most {MOST_TOOLS} tools")
        for tool in self.tools or ():
            if not isinstance(tool, str) or not TOOL_NAME.match(tool):
                raise BadKey(f"{tool!r} is no name of a tool, such as calculator or files.read")

    def _check_numbers(self) -> None:
        if self.burst is not None and self.rate_per_min is None:
            raise BadKey("a burst means something only together with a rate")
        for value, most, what in (
            (self.expires_s, LONGEST_LIFE_S, "the time until it expires, in seconds,"),
            (self.rate_per_min, MOST_PER_MIN, "the rate per minute"),
            (self.burst, MOST_BURST, "the burst"),
            (self.max_jobs, MOST_JOBS, "the number of jobs"),
        ):
            least = 1 if isinstance(value, int) else 0.001
            if value is not None and not (math.isfinite(value) and least <= value <= most):
                raise BadKey(f"{what} must be more than 0 and at most {most}")


@dataclass(frozen=True)
class AccessRecord:
    """A key as Redis knows it."""

    key_id: str
    name: str
    tenant: str
    scopes: frozenset[str]
    secrets: tuple[Secret, ...]
    created_ms: int
    expires_ms: int | None = None
    tasks: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    rate_per_min: float | None = None
    burst: int | None = None
    max_jobs: int | None = None

    @classmethod
    def from_spec(cls, key_id: str, spec: KeySpec, sha256: str, now_ms: int) -> AccessRecord:
        """A new key's record."""
        expires = None if spec.expires_s is None else now_ms + round(spec.expires_s * 1000)
        return cls(
            key_id=key_id,
            name=spec.name,
            tenant=spec.tenant,
            scopes=frozenset(spec.scopes),
            secrets=(Secret(sha256),),
            created_ms=now_ms,
            expires_ms=expires,
            tasks=None if spec.tasks is None else frozenset(spec.tasks),
            tools=None if spec.tools is None else frozenset(spec.tools),
            rate_per_min=spec.rate_per_min,
            burst=spec.burst,
            max_jobs=spec.max_jobs,
        )

    @classmethod
    def from_json(cls, key_id: str, raw: bytes) -> AccessRecord | None:
        """The stored record; None where a foreign hand has stored something else."""
        try:
            stored: dict[str, Any] = codec.loads(raw)
            return cls(key_id=key_id, **_members(stored))
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, BadKey):
            return None

    def to_json(self) -> bytes:
        """As it is stored."""
        values: dict[RecordField, object] = {
            RecordField.NAME: self.name,
            RecordField.TENANT: self.tenant,
            RecordField.SCOPES: sorted(self.scopes),
            RecordField.SECRETS: [
                {SecretField.SHA256.value: sha256, SecretField.UNTIL_MS.value: until_ms}
                for sha256, until_ms in self.secrets
            ],
            RecordField.CREATED_MS: self.created_ms,
            RecordField.EXPIRES_MS: self.expires_ms,
            RecordField.TASKS: None if self.tasks is None else sorted(self.tasks),
            RecordField.TOOLS: None if self.tools is None else sorted(self.tools),
            RecordField.RATE_PER_MIN: self.rate_per_min,
            RecordField.BURST: self.burst,
            RecordField.MAX_JOBS: self.max_jobs,
        }
        return codec.dumps({field.value: value for field, value in values.items()})

    def expired(self, now_ms: int) -> bool:
        """Whether its time is over."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

    @property
    def burst_or_usual(self) -> int:
        """Jobs that may come at once: unless said, as many as a minute brings."""
        return self.burst or max(1, math.floor(self.rate_per_min or 1))

    def limits(self, keys: AccessKeys) -> Limits | None:
        """For ENQUEUE; None where there are none."""
        if self.rate_per_min is None and self.max_jobs is None:
            return None
        rate = self.rate_per_min
        return Limits(
            keys.rate(self.key_id),
            keys.active(self.key_id),
            0 if rate is None else interval_us(rate),
            0 if rate is None else self.burst_or_usual,
            self.max_jobs or 0,
        )


def knows(known: Sequence[Secret], sha256: str, now_ms: int) -> bool:
    """The same work for two secrets, for one and for none."""
    found = False
    for secret in (*known, Secret(_NOBODYS), Secret(_NOBODYS))[:2]:
        same = hmac.compare_digest(secret.sha256, sha256)
        good = secret.until_ms is None or now_ms < secret.until_ms
        found |= same and good and secret.sha256 != _NOBODYS
    return found


def tail_of(tenant: str) -> str:
    """The last digits of the ids of a tenant's jobs: whose a job is needs no looking up."""
    digest = hashlib.blake2b(tenant.encode(), digest_size=TAIL_DIGITS // 2, person=b"sluice.tenant")
    return digest.hexdigest() if tenant else ""


def _members(stored: dict[str, Any]) -> dict[str, Any]:
    """Checked one by one: whoever can write here could let himself in, but not crash us."""
    spec = KeySpec(
        name=_text(stored[RecordField.NAME.value]),
        tenant=_text(stored[RecordField.TENANT.value]),
        scopes=tuple(scope for scope in stored[RecordField.SCOPES.value] if scope in _SCOPES),
        tasks=_optional(stored.get(RecordField.TASKS.value), tuple),
        tools=_optional(stored.get(RecordField.TOOLS.value), tuple),
        rate_per_min=_optional(stored.get(RecordField.RATE_PER_MIN.value), float),
        burst=_optional(stored.get(RecordField.BURST.value), int),
        max_jobs=_optional(stored.get(RecordField.MAX_JOBS.value), int),
    )
    secrets = tuple(
        Secret(item[SecretField.SHA256.value], _optional(item[SecretField.UNTIL_MS.value], int))
        for item in stored[RecordField.SECRETS.value]
    )
    if not all(_SHA256.match(secret.sha256) for secret in secrets):
        raise ValueError("a digest is none")
    return {
        "name": spec.name,
        "tenant": spec.tenant,
        "scopes": frozenset(spec.scopes),
        "secrets": secrets,
        "created_ms": int(stored[RecordField.CREATED_MS.value]),
        "expires_ms": _optional(stored.get(RecordField.EXPIRES_MS.value), int),
        "tasks": None if spec.tasks is None else frozenset(spec.tasks),
        "tools": None if spec.tools is None else frozenset(spec.tools),
        "rate_per_min": spec.rate_per_min,
        "burst": spec.burst,
        "max_jobs": spec.max_jobs,
    }


def _optional(value: Any, kind: Any) -> Any:
    return None if value is None else kind(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("should be text")
    return value


_SCOPES = tuple(scope.value for scope in Scope)
