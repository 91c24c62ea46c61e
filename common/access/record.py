"""API key records in Redis, and validation of new keys."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sluice.common import codec
from sluice.common.codec import TENANT_PATTERN
from sluice.common.contracts.access import (
    TAIL_DIGITS,
    AccessKeys,
    KeyRecordField,
    KeySecretField,
    Scope,
)
from sluice.common.contracts.jobs import TASKS
from sluice.common.errors import SluiceError
from sluice.common.jobs.limits import KeyLimits, interval_us

TOOL_NAME_PATTERN = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
#: Maximum number of tools in a key.
MOST_TOOLS = 100
LONGEST_NAME = 100
MOST_PER_MIN = 1_000_000
MOST_BURST = 1_000_000
MOST_JOBS = 100_000
#: Longest lifetime of a key with an expiry, in seconds.
LONGEST_LIFE_S = 10 * 365 * 24 * 3600
_SHA256 = re.compile(r"\A[0-9a-f]{64}\Z")
#: Compared if there is no digest, so that both cases take the same time.
_NO_DIGEST = "0" * 64


class InvalidKeySpec(SluiceError):
    """The options of a new key are invalid; the message gives the reason."""


class KeySecret(NamedTuple):
    """The digest of a key, and when it expires; None: with the key."""

    sha256: str
    until_ms: int | None = None


@dataclass(frozen=True)
class KeySpec:
    """The options of a new key."""

    name: str
    tenant: str = ""
    scopes: tuple[str, ...] = (Scope.JOBS_WRITE.value, Scope.JOBS_READ.value)
    expires_s: float | None = None
    tasks: tuple[str, ...] | None = None
    #: Tools that its jobs may use; None for all, empty for none.
    tools: tuple[str, ...] | None = None
    rate_per_min: float | None = None
    burst: int | None = None
    max_jobs: int | None = None

    def __post_init__(self) -> None:
        self._check_words()
        self._check_numbers()

    def _check_words(self) -> None:
        if not 0 < len(self.name) <= LONGEST_NAME or not self.name.isprintable():
            raise InvalidKeySpec(f"the name must be 1 to {LONGEST_NAME} printable characters")
        if self.tenant and not TENANT_PATTERN.match(self.tenant):
            raise InvalidKeySpec(
                f"{self.tenant!r} is not a tenant; use 1 to 63 of a-z, 0-9 and -, not first a -"
            )
        if not self.scopes:
            raise InvalidKeySpec(f"a key needs a scope: {', '.join(_SCOPES)}")
        for scope in self.scopes:
            if scope not in _SCOPES:
                raise InvalidKeySpec(f"{scope!r} is not a scope; scopes are {', '.join(_SCOPES)}")
        for task in self.tasks or ():
            if task not in TASKS:
                raise InvalidKeySpec(f"{task!r} is not a task; tasks are {', '.join(TASKS)}")
        if self.tools is not None and len(self.tools) > MOST_TOOLS:
            raise InvalidKeySpec(f"a key may list at most {MOST_TOOLS} tools")
        for tool in self.tools or ():
            if not isinstance(tool, str) or not TOOL_NAME_PATTERN.match(tool):
                raise InvalidKeySpec(
                    f"{tool!r} is not the name of a tool, such as calculator or files.read"
                )

    def _check_numbers(self) -> None:
        if self.burst is not None and self.rate_per_min is None:
            raise InvalidKeySpec("a burst needs a rate")
        for value, most, what in (
            (self.expires_s, LONGEST_LIFE_S, "the time until it expires, in seconds,"),
            (self.rate_per_min, MOST_PER_MIN, "the rate per minute"),
            (self.burst, MOST_BURST, "the burst"),
            (self.max_jobs, MOST_JOBS, "the number of jobs"),
        ):
            least = 1 if isinstance(value, int) else 0.001
            if value is not None and not (math.isfinite(value) and least <= value <= most):
                raise InvalidKeySpec(f"{what} must be more than 0 and at most {most}")


@dataclass(frozen=True)
class AccessRecord:
    """A key record."""

    key_id: str
    name: str
    tenant: str
    scopes: frozenset[str]
    secrets: tuple[KeySecret, ...]
    created_ms: int
    expires_ms: int | None = None
    tasks: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    rate_per_min: float | None = None
    burst: int | None = None
    max_jobs: int | None = None

    @classmethod
    def from_spec(cls, key_id: str, spec: KeySpec, sha256: str, now_ms: int) -> AccessRecord:
        expires = None if spec.expires_s is None else now_ms + round(spec.expires_s * 1000)
        return cls(
            key_id=key_id,
            name=spec.name,
            tenant=spec.tenant,
            scopes=frozenset(spec.scopes),
            secrets=(KeySecret(sha256),),
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
        """Parse a stored record; None if it is invalid."""
        try:
            stored: dict[str, Any] = codec.loads(raw)
            return cls(key_id=key_id, **_members(stored))
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, InvalidKeySpec):
            return None

    def to_json(self) -> bytes:
        values: dict[str, object] = {
            KeyRecordField.NAME: self.name,
            KeyRecordField.TENANT: self.tenant,
            KeyRecordField.SCOPES: sorted(self.scopes),
            KeyRecordField.SECRETS: [
                {KeySecretField.SHA256: sha256, KeySecretField.UNTIL_MS: until_ms}
                for sha256, until_ms in self.secrets
            ],
            KeyRecordField.CREATED_MS: self.created_ms,
            KeyRecordField.EXPIRES_MS: self.expires_ms,
            KeyRecordField.TASKS: None if self.tasks is None else sorted(self.tasks),
            KeyRecordField.TOOLS: None if self.tools is None else sorted(self.tools),
            KeyRecordField.RATE_PER_MIN: self.rate_per_min,
            KeyRecordField.BURST: self.burst,
            KeyRecordField.MAX_JOBS: self.max_jobs,
        }
        return codec.dumps(dict(values.items()))

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms

    @property
    def effective_burst(self) -> int:
        """Jobs that may arrive at once; by default as many as the rate allows per minute."""
        return self.burst or max(1, math.floor(self.rate_per_min or 1))

    def limits(self, keys: AccessKeys) -> KeyLimits | None:
        """The limits for ENQUEUE; None if the key has none."""
        if self.rate_per_min is None and self.max_jobs is None:
            return None
        rate = self.rate_per_min
        return KeyLimits(
            keys.rate(self.key_id),
            keys.active(self.key_id),
            0 if rate is None else interval_us(rate),
            0 if rate is None else self.effective_burst,
            self.max_jobs or 0,
        )


def is_valid_secret(known: Sequence[KeySecret], sha256: str, now_ms: int) -> bool:
    """Check a digest in constant time, for two secrets, for one and for none."""
    found = False
    for secret in (*known, KeySecret(_NO_DIGEST), KeySecret(_NO_DIGEST))[:2]:
        same = hmac.compare_digest(secret.sha256, sha256)
        good = secret.until_ms is None or now_ms < secret.until_ms
        found |= same and good and secret.sha256 != _NO_DIGEST
    return found


def tenant_tail(tenant: str) -> str:
    """The last digits of a tenant's job ids, which identify the owner without a lookup."""
    digest = hashlib.blake2b(tenant.encode(), digest_size=TAIL_DIGITS // 2, person=b"sluice.tenant")
    return digest.hexdigest() if tenant else ""


def _members(stored: dict[str, Any]) -> dict[str, Any]:
    """Validate every member: a writer to Redis could grant access, but must not crash the
    gateway."""
    spec = KeySpec(
        name=_text(stored[KeyRecordField.NAME]),
        tenant=_text(stored[KeyRecordField.TENANT]),
        scopes=tuple(scope for scope in stored[KeyRecordField.SCOPES] if scope in _SCOPES),
        tasks=_optional(stored.get(KeyRecordField.TASKS), tuple),
        tools=_optional(stored.get(KeyRecordField.TOOLS), tuple),
        rate_per_min=_optional(stored.get(KeyRecordField.RATE_PER_MIN), float),
        burst=_optional(stored.get(KeyRecordField.BURST), int),
        max_jobs=_optional(stored.get(KeyRecordField.MAX_JOBS), int),
    )
    secrets = tuple(
        KeySecret(item[KeySecretField.SHA256], _optional(item[KeySecretField.UNTIL_MS], int))
        for item in stored[KeyRecordField.SECRETS]
    )
    if not all(_SHA256.match(secret.sha256) for secret in secrets):
        raise ValueError("a digest is not 64 hex digits")
    return {
        "name": spec.name,
        "tenant": spec.tenant,
        "scopes": frozenset(spec.scopes),
        "secrets": secrets,
        "created_ms": int(stored[KeyRecordField.CREATED_MS]),
        "expires_ms": _optional(stored.get(KeyRecordField.EXPIRES_MS), int),
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
