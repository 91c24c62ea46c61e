"""Conversion between bytes in Redis and typed values: JSON, job hash, events, stream ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from sluice.common.contracts.jobs import (
    RAW_PAYLOAD,
    TERMINAL,
    TTL_MAX_S,
    TTL_MIN_S,
    EventField,
    JobField,
)


def ttl_or_default(raw: object, default_s: int) -> int:
    """The TTL of a job hash, or the default if the hash has no valid one.

    `EXPIRE 0` deletes a job, so an invalid value must never reach Redis.
    """
    try:
        ttl_s = int(raw)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return default_s
    return ttl_s if TTL_MIN_S <= ttl_s <= TTL_MAX_S else default_s


#: orjson reads integers beyond 64 bits as floats. A run of this many digits may be one. (Mapping
#: every digit to 0 and searching for a run takes a tenth of the time of a regular expression.)
_DIGITS_TO_ZERO = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_LONG_NUMBER = b"0" * 19

#: Valid job ids. Sluice's own are UUIDs; a third-party gateway may use other ids.
JOB_ID_PATTERN = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_STREAM_ID_PATTERN = re.compile(r"\A([0-9]{1,20})-([0-9]{1,20})\Z")


def dumps(value: object) -> bytes:
    """Compact JSON; raises TypeError for values that JSON cannot represent."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        if not _holds_big_integer(value):
            raise
        return json.dumps(
            value, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()


def dumps_canonical(value: object) -> bytes:
    """JSON that does not depend on the order of the keys."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def loads(raw: bytes) -> Any:
    """Parse JSON; raises ValueError if it is invalid."""
    value = orjson.loads(raw)
    if _LONG_NUMBER not in raw.translate(_DIGITS_TO_ZERO):
        return value
    try:  # keeps big integers exact, at a tenth of the speed; orjson has validated the text
        return json.loads(raw)
    except RecursionError:
        raise ValueError("nested too deep") from None


def loads_node(raw: bytes) -> Any:
    """Parse JSON as Node.js does: unpaired surrogates in strings, written as escapes, are kept.

    Raises ValueError if it is invalid.
    """
    try:
        return loads(raw)
    except ValueError:
        if b"\\u" not in raw:
            raise
    try:
        return json.loads(raw.decode(), parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def dumps_node(value: object) -> bytes:
    """JSON as Node.js writes it: unpaired surrogates in strings are written as escapes."""
    try:
        return dumps(value)
    except (TypeError, ValueError):
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _holds_big_integer(value: object) -> bool:
    if isinstance(value, dict):
        return any(_holds_big_integer(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_big_integer(item) for item in value)
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 64


def decode_text(raw: bytes) -> str:
    """Decode untrusted bytes; invalid UTF-8 is replaced."""
    return raw.decode("utf-8", errors="replace")


def parse_payload(raw: bytes) -> dict[str, Any]:
    """The payload of a queue message; anything but a JSON object is stored under `_raw`."""
    try:
        value = loads(raw)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {RAW_PAYLOAD: decode_text(raw)}


def json_fragment(raw: bytes, *, empty: object = None) -> object:
    """Stored JSON to embed unchanged in a response; invalid JSON is stored under `_raw`."""
    if not raw:
        return empty
    try:
        orjson.loads(raw)
    except ValueError:
        return {RAW_PAYLOAD: decode_text(raw)}
    # JSON allows line breaks only as white space between tokens. They would break an SSE line.
    return orjson.Fragment(raw.replace(b"\n", b" ").replace(b"\r", b" "))


def node_fragment(raw: bytes, *, empty: object = None) -> object:
    """Like `json_fragment`, for JSON that Node.js may have written.

    Unpaired surrogates are replaced by U+FFFD, because many clients reject JSON with them.
    """
    try:
        orjson.loads(raw or b"null")
    except ValueError:
        try:
            text = json.dumps(loads_node(raw), ensure_ascii=False, separators=(",", ":"))
        except (ValueError, RecursionError):
            return json_fragment(raw, empty=empty)
        valid = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return orjson.Fragment(valid.encode())
    return json_fragment(raw, empty=empty)


def parse_int(raw: bytes, default: int = 0) -> int:
    """A number stored as text; the default if it is not a 64-bit integer."""
    try:
        value = int(raw)
    except ValueError:
        return default
    return value if abs(value) < 1 << 63 else default


@dataclass(frozen=True, slots=True)
class Job:
    """The nine fields of a job hash; the three JSON fields are not parsed."""

    job_id: str
    task: str
    payload: bytes
    status: str
    created_ts: int
    updated_ts: int
    ttl_s: int
    result: bytes
    error: bytes

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    @classmethod
    def from_hash(cls, fields: Mapping[bytes, bytes], job_id: str = "") -> Job:
        """From HGETALL of `job_id`'s key; invalid fields get neutral values."""

        def get(field: str) -> bytes:
            return fields.get(field.encode(), b"")

        return cls(
            job_id=job_id or decode_text(get(JobField.JOB_ID)),
            task=decode_text(get(JobField.TASK)),
            payload=get(JobField.PAYLOAD),
            status=decode_text(get(JobField.STATUS)),
            created_ts=parse_int(get(JobField.CREATED_TS)),
            updated_ts=parse_int(get(JobField.UPDATED_TS)),
            ttl_s=ttl_or_default(get(JobField.TTL_S), 0),
            result=get(JobField.RESULT),
            error=get(JobField.ERROR),
        )

    def to_json(self) -> bytes:
        """The body of `GET /v1/jobs/{id}`."""
        return dumps(
            {
                JobField.JOB_ID: self.job_id,
                JobField.TASK: self.task,
                JobField.PAYLOAD: json_fragment(self.payload),
                JobField.STATUS: self.status,
                JobField.CREATED_TS: self.created_ts,
                JobField.UPDATED_TS: self.updated_ts,
                JobField.TTL_S: self.ttl_s,
                JobField.RESULT: json_fragment(self.result),
                JobField.ERROR: json_fragment(self.error),
            }
        )


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of an events stream; `data` is not parsed."""

    id: str
    type: str
    ts: int
    step: str
    data: bytes

    @property
    def terminal(self) -> bool:
        return self.type in TERMINAL

    @classmethod
    def from_entry(cls, entry_id: bytes, fields: Mapping[bytes, bytes]) -> Event:
        def get(field: str) -> bytes:
            return fields.get(field.encode(), b"")

        return cls(
            id=entry_id.decode(),
            type=decode_text(get(EventField.TYPE)),
            ts=parse_int(get(EventField.TS)),
            step=decode_text(get(EventField.STEP)),
            data=get(EventField.DATA),
        )

    def body(self) -> dict[str, object]:
        return {
            EventField.TYPE: self.type,
            EventField.TS: self.ts,
            EventField.STEP: self.step,
            EventField.DATA: json_fragment(self.data, empty={}),
        }


def parse_stream_id(raw: str) -> tuple[int, int] | None:
    """A stream id as a comparable pair; None if it is invalid."""
    match = _STREAM_ID_PATTERN.match(raw)
    if match is None:
        return None
    pair = int(match[1]), int(match[2])
    return pair if max(pair) < 1 << 64 else None


def json_pointer(path: Iterable[str | int]) -> str:
    """A path as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


#: Valid tenant names.
TENANT_PATTERN: Final = re.compile(r"\A[a-z0-9][a-z0-9-]{0,62}\Z")


def schema_pattern(pattern: re.Pattern[str]) -> str:
    """The pattern for JSON Schema and pydantic, which do not support `\\A` and `\\Z`."""
    return pattern.pattern.replace(r"\A", "^").replace(r"\Z", "$")
