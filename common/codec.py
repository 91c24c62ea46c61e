"""Between bytes in Redis and typed values: JSON, the job hash, events, stream ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from common.contracts.jobs import RAW_PAYLOAD, TERMINAL, TTL_MAX_S, TTL_MIN_S, EventField, JobField


def ttl_or_default(raw: object, default_s: int) -> int:
    """The TTL that a job hash names, or the default where it names nonsense.

    `EXPIRE 0` deletes a job, so a bad value must never reach Redis.
    """
    try:
        ttl_s = int(raw)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return default_s
    return ttl_s if TTL_MIN_S <= ttl_s <= TTL_MAX_S else default_s


#: orjson reads integers beyond 64 bits as floats; so many digits in a row hint at one. (Mapping
#: every digit to 0 and searching for a run of them takes a tenth of a regular expression's time.)
_DIGITS_TO_ZERO = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_LONG_NUMBER = b"0" * 19

#: What a job id may look like. Ours are UUIDs; a foreign gateway's may differ, within reason.
JOB_ID_PATTERN = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_STREAM_ID_PATTERN = re.compile(r"\A([0-9]{1,20})-([0-9]{1,20})\Z")


def dumps(value: object) -> bytes:
    """Compact JSON; raises TypeError for what JSON cannot hold."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        if not _holds_big_integer(value):
            raise
        return json.dumps(
            value, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()


def dumps_canonical(value: object) -> bytes:
    """The same bytes for the same value, however its keys were ordered."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def loads(raw: bytes) -> Any:
    """JSON to Python; raises ValueError for anything that is not JSON."""
    value = orjson.loads(raw)
    if _LONG_NUMBER not in raw.translate(_DIGITS_TO_ZERO):
        return value
    try:  # keeps big integers whole, at a tenth of the speed; orjson has checked the text
        return json.loads(raw)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _holds_big_integer(value: object) -> bool:
    if isinstance(value, dict):
        return any(_holds_big_integer(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_big_integer(item) for item in value)
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 64


def decode_text(raw: bytes) -> str:
    """Bytes from a foreign hand as text; never fails."""
    return raw.decode("utf-8", errors="replace")


def parse_payload(raw: bytes) -> dict[str, Any]:
    """A queue message's payload; what is no JSON object is kept under `_raw`."""
    try:
        value = loads(raw)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {RAW_PAYLOAD: decode_text(raw)}


def json_fragment(raw: bytes, *, empty: object = None) -> object:
    """Stored JSON to splice into an answer byte by byte; what is no JSON goes under `_raw`."""
    if not raw:
        return empty
    try:
        orjson.loads(raw)
    except ValueError:
        return {RAW_PAYLOAD: decode_text(raw)}
    # Outside of strings a line break is just white space, and inside JSON knows none. It would
    # break an SSE line.
    return orjson.Fragment(raw.replace(b"\n", b" ").replace(b"\r", b" "))


def parse_int(raw: bytes, default: int = 0) -> int:
    """A number stored as text; the default where a foreign hand stored something else."""
    try:
        value = int(raw)
    except ValueError:
        return default
    return value if abs(value) < 1 << 63 else default


@dataclass(frozen=True, slots=True)
class Job:
    """The job hash: nine fields; the three JSON fields as stored."""

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
        """From HGETALL of `job_id`'s key; odd fields of a foreign writer become neutral values."""

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
        """The deserialised job object of `GET /v1/jobs/{id}`."""
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
    """One entry of an events stream; `data` as stored."""

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
    """A stream id as a comparable pair; None for anything else."""
    match = _STREAM_ID_PATTERN.match(raw)
    if match is None:
        return None
    pair = int(match[1]), int(match[2])
    return pair if max(pair) < 1 << 64 else None


def json_pointer(path: Iterable[str | int]) -> str:
    """A place, as RFC 6901 writes it."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


#: The name of a tenant.
TENANT_PATTERN: Final = re.compile(r"\A[a-z0-9][a-z0-9-]{0,62}\Z")


def schema_pattern(pattern: re.Pattern[str]) -> str:
    """As JSON Schema and pydantic write it, which know no `\\A` and `\\Z`."""
    return pattern.pattern.replace(r"\A", "^").replace(r"\Z", "$")
