"""Between bytes in Redis and typed values: JSON, the job hash, events, stream ids."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from common.contracts.jobs import RAW_PAYLOAD, TERMINAL, EventField, JobField
from common.ttl import ttl_or_default

#: orjson reads integers beyond 64 bits as floats; so many digits in a row hint at one. (Mapping
#: every digit to 0 and searching for a run of them takes a tenth of a regular expression's time.)
_DIGITS_TO_ZERO = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_LONG_NUMBER = b"0" * 19

#: What a job id may look like. Ours are UUIDs; a foreign gateway's may differ, within reason.
JOB_ID = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_ID = re.compile(r"\A([0-9]{1,20})-([0-9]{1,20})\Z")


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


def text(raw: bytes) -> str:
    """Bytes from a foreign hand as text; never fails."""
    return raw.decode("utf-8", errors="replace")


def payload_object(raw: bytes) -> dict[str, Any]:
    """A queue message's payload; what is no JSON object is kept under `_raw`."""
    try:
        value = loads(raw)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {RAW_PAYLOAD: text(raw)}


def fragment(raw: bytes, *, empty: object = None) -> object:
    """Stored JSON to splice into an answer byte by byte; what is no JSON goes under `_raw`."""
    if not raw:
        return empty
    try:
        orjson.loads(raw)
    except ValueError:
        return {RAW_PAYLOAD: text(raw)}
    # Outside of strings a line break is just white space, and inside JSON knows none. It would
    # break an SSE line.
    return orjson.Fragment(raw.replace(b"\n", b" ").replace(b"\r", b" "))


def integer(raw: bytes, default: int = 0) -> int:
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
        """Whether the job has ended."""
        return self.status in TERMINAL

    @classmethod
    def from_hash(cls, fields: Mapping[bytes, bytes], job_id: str = "") -> Job:
        """From HGETALL of `job_id`'s key; odd fields of a foreign writer become neutral values."""

        def get(field: JobField) -> bytes:
            return fields.get(field.value.encode(), b"")

        return cls(
            job_id=job_id or text(get(JobField.JOB_ID)),
            task=text(get(JobField.TASK)),
            payload=get(JobField.PAYLOAD),
            status=text(get(JobField.STATUS)),
            created_ts=integer(get(JobField.CREATED_TS)),
            updated_ts=integer(get(JobField.UPDATED_TS)),
            ttl_s=ttl_or_default(get(JobField.TTL_S), 0),
            result=get(JobField.RESULT),
            error=get(JobField.ERROR),
        )

    def to_json(self) -> bytes:
        """The deserialised job object of `GET /v1/jobs/{id}`."""
        return dumps(
            {
                JobField.JOB_ID.value: self.job_id,
                JobField.TASK.value: self.task,
                JobField.PAYLOAD.value: fragment(self.payload),
                JobField.STATUS.value: self.status,
                JobField.CREATED_TS.value: self.created_ts,
                JobField.UPDATED_TS.value: self.updated_ts,
                JobField.TTL_S.value: self.ttl_s,
                JobField.RESULT.value: fragment(self.result),
                JobField.ERROR.value: fragment(self.error),
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
        """Whether the stream ends here."""
        return self.type in TERMINAL

    @classmethod
    def from_entry(cls, entry_id: bytes, fields: Mapping[bytes, bytes]) -> Event:
        """From XRANGE or XREAD."""

        def get(field: EventField) -> bytes:
            return fields.get(field.value.encode(), b"")

        return cls(
            id=entry_id.decode(),
            type=text(get(EventField.TYPE)),
            ts=integer(get(EventField.TS)),
            step=text(get(EventField.STEP)),
            data=get(EventField.DATA),
        )

    def body(self) -> dict[str, object]:
        """The whole event, `data` parsed."""
        return {
            EventField.TYPE.value: self.type,
            EventField.TS.value: self.ts,
            EventField.STEP.value: self.step,
            EventField.DATA.value: fragment(self.data, empty={}),
        }


def stream_id(raw: str) -> tuple[int, int] | None:
    """A stream id as a comparable pair; None for anything else."""
    match = _ID.match(raw)
    if match is None:
        return None
    pair = int(match[1]), int(match[2])
    return pair if max(pair) < 1 << 64 else None
