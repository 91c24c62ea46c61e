"""The atomic operations: renders `common/lua` and packs many of them into one script call."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from common.contracts import jobs, scripts
from common.errors import CorruptKey, SluiceError, StoreUnavailable

Argument = str | bytes | int

#: Events kept per job; older ones are trimmed and a reader is told so by a `gap`.
EVENTS_PER_JOB = 10_000
#: Dead letters kept, each with its payload.
DEAD_LETTERS = 2_000

_LUA = Path(__file__).with_name("lua")
_PARTS = ("prelude", *(operation.value for operation in scripts.Operation), "dispatch")
_ENUMS: dict[str, type[Enum]] = {
    "STATUS": jobs.Status,
    "EVENT_TYPE": jobs.EventType,
    "STEP": jobs.Step,
    "QUEUE": jobs.QueueField,
    "JOB": jobs.JobField,
    "EVENT": jobs.EventField,
    "LEASE": jobs.LeaseField,
    "DEAD": jobs.DeadField,
    "REASON": jobs.DeadReason,
    "ERROR_KIND": jobs.ErrorKind,
    "DATA": jobs.DataField,
    "OPERATION": scripts.Operation,
    "ANSWER": scripts.Answer,
}
#: Errors inside a script that pass by themselves: memory freed, disk back, replica promoted.
_TRANSIENT = re.compile(r"\b(OOM|READONLY|MISCONF|NOREPLICAS|LOADING|MASTERDOWN|BUSY)\b")


class Record(NamedTuple):
    """One operation on one job: what a script call carries many of."""

    operation: str
    keys: Sequence[str]
    args: Sequence[Argument]
    #: Who does it (`common.store.WorkerIdentity`), where the operation wants to know.
    identity: tuple[Argument, ...] = ()
    #: Roughly how many bytes it carries, where that may be many.
    size: int = 0


class Reply(NamedTuple):
    """An operation's answer and what came with it."""

    answer: scripts.Answer
    value: bytes | int | None = None
    more: Sequence[bytes] = ()


def _names() -> dict[str, str]:
    names = {
        f"{prefix}_{member.name}": f"'{member.value}'"
        for prefix, enum in _ENUMS.items()
        for member in enum
    }
    names["TTL_MIN_S"] = str(jobs.TTL_MIN_S)
    names["TTL_MAX_S"] = str(jobs.TTL_MAX_S)
    names["LEASE_MAX_MS"] = str(jobs.LEASE_MAX_MS)
    names["WAITING_ROOM"] = f"'{jobs.WAITING_ROOM}'"
    return names


def render() -> str:
    """The whole script, every `$NAME` replaced by the contract's literal."""
    names = _names()
    source = "\n".join((_LUA / f"{part}.lua").read_text() for part in _PARTS)
    return re.sub(r"\$([A-Z_]+)", lambda match: names[match[1]], source)


SOURCE: Final = render()
SHA: Final = hashlib.sha1(SOURCE.encode(), usedforsecurity=False).hexdigest()
_ANSWERS = {answer.value.encode(): answer for answer in scripts.Answer}


def pack(keys: jobs.JobKeys, records: Iterable[Record]) -> list[Argument]:
    """EVALSHA's arguments after the script itself: key count, keys, arguments."""
    all_keys: list[Argument] = [keys.finished, keys.queue, keys.dead_letters]
    identities: list[tuple[Argument, ...]] = []
    args: list[Argument] = []
    for operation, record_keys, record_args, identity, _ in records:
        if identity and (not identities or identities[-1] is not identity):
            identities.append(identity)
        all_keys += record_keys
        args += (operation, max(len(identities) - 1, 0), len(record_keys), len(record_args))
        args += record_args
    head: list[Argument] = [keys.hints, EVENTS_PER_JOB, DEAD_LETTERS, len(identities)]
    for identity in identities:
        head += identity
    return [len(all_keys), *all_keys, *head, *args]


def unpack(raw: list[bytes | int]) -> Reply | SluiceError:
    """One record's reply, or the error that befell it alone."""
    answer = _ANSWERS[raw[0]]  # type: ignore[index]
    value = raw[1] if len(raw) > 1 else None
    if answer is not scripts.Answer.FAILED:
        return Reply(answer, value, raw[2:]) if len(raw) > 2 else Reply(answer, value)  # type: ignore[arg-type]
    message = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return StoreUnavailable(message) if is_passing(message) else CorruptKey(message)


def is_passing(message: str) -> bool:
    """Whether an error of Redis passes by itself."""
    return _TRANSIENT.search(message) is not None
