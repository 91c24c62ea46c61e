"""The job script: renders `lua/**/*.lua` with the names of the contract and packs its arguments."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sluice.common.contracts import jobs, queue
from sluice.common.redis.scripts import (
    Argument,
    BatchScript,
    Record,
    lua_enum_names,
    read_lua,
    render_lua,
)

#: Events kept per job; older ones are trimmed, and readers get a `gap` event instead.
MAX_EVENTS_PER_JOB = 10_000
#: Dead letters kept, each with its payload.
MAX_DEAD_LETTERS = 2_000

_LUA = Path(__file__).with_name("lua")
_PARTS = ("prelude", "queueing", *(operation.value for operation in queue.Operation), "dispatch")
#: Lua parts for scripts of features that create core jobs.
JOB_CREATION_PARTS: Final = ("prelude", "queueing", "admission")
_ENUMS: dict[str, type] = {
    "STATUS": jobs.Status,
    "EVENT_TYPE": jobs.EventType,
    "STEP": jobs.Step,
    "QUEUE": jobs.QueueField,
    "JOB": jobs.JobField,
    "EVENT": jobs.EventField,
    "LEASE": jobs.LeaseField,
    "DEAD": jobs.DeadLetterField,
    "REASON": jobs.DeadReason,
    "ERROR_KIND": jobs.ErrorKind,
    "DATA": jobs.DataField,
    "COUNT": jobs.CountField,
    "TASK": jobs.Task,
    "OPTION": jobs.Option,
    "OPERATION": queue.Operation,
    "ANSWER": queue.Answer,
}


class JobScript(BatchScript):
    """A script that starts with the prelude and ends with the dispatch of the job script."""

    def pack(
        self, keys: jobs.JobKeys, records: Iterable[Record], *, again: bool = False
    ) -> list[Argument]:
        """EVALSHA's arguments after the script itself; see `BatchScript.pack`."""
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
            # Some scripts derive key names from what they read. While a Cluster moves their slot,
            # such a key may have moved already, and the script would fail halfway. A key that does
            # not exist makes Redis refuse the whole call meanwhile. It is then repeated.
            all_keys.append(keys.probe)
        head: list[Argument] = [keys.hints, MAX_EVENTS_PER_JOB, MAX_DEAD_LETTERS, keys.index_max]
        head.append(len(identities))
        for identity in identities:
            head += identity
        return [len(all_keys), *all_keys, *head, *args]


def core_constants() -> dict[str, str]:
    """Every `$NAME` in the Lua of jobs, with its value."""
    names = lua_enum_names(_ENUMS)
    keys = jobs.JobKeys()
    record = keys.job("")
    names["CORE_JOB"] = f"'{record}'"
    names["CORE_EVENTS"] = f"'{keys.events('')[len(record) :]}'"
    names["CORE_LEASE"] = f"'{keys.lease('')[len(record) :]}'"
    names["TTL_MIN_S"] = str(jobs.TTL_MIN_S)
    names["TTL_MAX_S"] = str(jobs.TTL_MAX_S)
    names["LEASE_MAX_MS"] = str(jobs.LEASE_MAX_MS)
    names["DO_NOT_BEGIN"] = f"'{queue.DO_NOT_BEGIN}'"
    names["WAIT_QUEUE_PREFIX"] = f"'{jobs.WAIT_QUEUE_PREFIX}'"
    return names


def read_core_lua(part: str) -> str:
    """The unrendered source of a part."""
    return read_lua(_LUA, part)


def render_core_script() -> str:
    return render_lua("\n".join(read_core_lua(part) for part in _PARTS), core_constants())


CORE_SCRIPT: Final = JobScript(render_core_script)
