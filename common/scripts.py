"""The atomic operations: renders `common/lua` and packs many of them into one script call."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property
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
_PARTS = ("prelude", "queueing", *(operation.value for operation in scripts.Operation), "dispatch")
#: With which the scripts begin that make core jobs for purposes of their own.
FOR_FRONT_DOORS: Final = ("prelude", "queueing", "admission")
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
    "COUNT": jobs.CountField,
    "TASK": jobs.Task,
    "OPTION": jobs.Option,
    "OPERATION": scripts.Operation,
    "ANSWER": scripts.Answer,
}
#: Errors that pass by themselves: memory freed, disk back, replica promoted, slot moved. Only the
#: word with which Redis begins one counts, after what it and Lua may put before it: anybody's key
#: may be called LOADING.
_TRANSIENT = re.compile(
    r"(?:ERR )?(?:Error running script \([^()]*\): )?(?:\S*user_script: ?\d+: )*"
    r"-?(?:(?P<elsewhere>READONLY|MOVED|CLUSTERDOWN|MASTERDOWN)"
    r"|OOM|MISCONF|NOREPLICAS|LOADING|BUSY|ASK|TRYAGAIN)\b"
)


class Script:
    """Lua that runs the records of a call: between our prelude and our dispatch.

    It is rendered when it is first sent: not every process sends all there are.
    """

    def __init__(self, render: Callable[[], str]) -> None:
        self._render = render

    @cached_property
    def source(self) -> str:
        """As Redis gets it."""
        return self._render()

    @cached_property
    def sha(self) -> str:
        """The name that Redis gives it."""
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


class Record(NamedTuple):
    """One operation on one job: what a script call carries many of."""

    operation: str
    keys: Sequence[str]
    args: Sequence[Argument]
    #: Who does it (`common.store.WorkerIdentity`), where the operation wants to know.
    identity: tuple[Argument, ...] = ()
    #: Roughly how many bytes it carries, where that may be many.
    size: int = 0
    #: Its arguments where it may have been sent before, if they differ then.
    repeated: Sequence[Argument] = ()


class Reply(NamedTuple):
    """An operation's answer and what came with it."""

    answer: scripts.Answer
    value: bytes | int | None = None
    more: Sequence[bytes] = ()


def names_of(enums: Mapping[str, type[Enum]]) -> dict[str, str]:
    """What Lua calls the members of enums, and their literals: `JOB_STATUS`, `'status'`."""
    return {
        f"{prefix}_{member.name}": f"'{member.value}'"
        for prefix, enum in enums.items()
        for member in enum
    }


def rendered(source: str, names: Mapping[str, str]) -> str:
    """Lua with every `$NAME` replaced by the contract's literal."""
    return re.sub(r"\$([A-Z_]+)", lambda match: names[match[1]], source)


def core_names() -> dict[str, str]:
    """Every name in the core's Lua."""
    names = names_of(_ENUMS)
    keys = jobs.JobKeys()
    record = keys.job("")
    names["CORE_JOB"] = f"'{record}'"
    names["CORE_EVENTS"] = f"'{keys.events('')[len(record) :]}'"
    names["CORE_LEASE"] = f"'{keys.lease('')[len(record) :]}'"
    names["TTL_MIN_S"] = str(jobs.TTL_MIN_S)
    names["TTL_MAX_S"] = str(jobs.TTL_MAX_S)
    names["LEASE_MAX_MS"] = str(jobs.LEASE_MAX_MS)
    names["LEAVE_ALONE"] = f"'{scripts.LEAVE_ALONE}'"
    names["WAITING_ROOM"] = f"'{jobs.WAITING_ROOM}'"
    return names


def lua_of(part: str) -> str:
    """A part of the script, as it was written."""
    return (_LUA / f"{part}.lua").read_text()


def render() -> str:
    """The whole script."""
    return rendered("\n".join(lua_of(part) for part in _PARTS), core_names())


def script_of(source: str) -> Script:
    """A script that needs no rendering."""
    return Script(lambda: source)


CORE: Final = Script(render)
SOURCE: Final = CORE.source
SHA: Final = CORE.sha
_ANSWERS = {answer.value.encode(): answer for answer in scripts.Answer}


def pack(keys: jobs.JobKeys, records: Iterable[Record], *, again: bool = False) -> list[Argument]:
    """EVALSHA's arguments after the script itself: key count, keys, arguments.

    `again`: the records may have been sent before.
    """
    all_keys: list[Argument] = [keys.counts, keys.stream, keys.dead_letters, keys.index]
    identities: list[tuple[Argument, ...]] = []
    args: list[Argument] = []
    for operation, record_keys, record_args, identity, _, repeated in records:
        if again and repeated:
            record_args = repeated
        if identity and (not identities or identities[-1] is not identity):
            identities.append(identity)
        all_keys += record_keys
        args += (operation, max(len(identities) - 1, 0), len(record_keys), len(record_args))
        args += record_args
    if keys.tag:
        # Some scripts make names of what they read. While a Cluster moves their slot, such a key
        # may have gone ahead, and the script would fail halfway. One that is nowhere makes Redis
        # refuse the whole call meanwhile, which is then repeated.
        all_keys.append(keys.probe)
    head: list[Argument] = [keys.hints, EVENTS_PER_JOB, DEAD_LETTERS, keys.index_max]
    head.append(len(identities))
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
    return _TRANSIENT.match(message) is not None


def is_elsewhere(message: str) -> bool:
    """Whether an error of Redis says that another server has the data by now."""
    found = _TRANSIENT.match(message)
    return found is not None and found["elsewhere"] is not None
