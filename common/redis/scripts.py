"""Lua scripts: rendering, records, replies, and running them."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.exceptions import NoScriptError
from redis.typing import EncodableT

from sluice.common.contracts import members_of, queue
from sluice.common.contracts.jobs import JobKeys
from sluice.common.errors import CorruptKey, SluiceError, StoreUnavailable
from sluice.common.redis.pipelined import CommandClient

Argument = str | bytes | int

#: Errors that pass: out of memory, disk full, failover, moved slot. Only the code at the beginning
#: counts, after the prefixes that Redis and Lua may add, because a key may be named LOADING.
_TRANSIENT = re.compile(
    r"(?:ERR )?(?:Error running script \([^()]*\): )?(?:\S*user_script: ?\d+: )*"
    r"-?(?:(?P<elsewhere>READONLY|MOVED|CLUSTERDOWN|MASTERDOWN)"
    r"|OOM|MISCONF|NOREPLICAS|LOADING|BUSY|ASK|TRYAGAIN)\b"
)


class Script:
    """Lua source and its SHA-1 digest.

    Rendered when it is first sent, because most processes send only a few of the scripts.
    """

    def __init__(self, render: Callable[[], str]) -> None:
        self._render = render

    @cached_property
    def source(self) -> str:
        return self._render()

    @cached_property
    def sha(self) -> str:
        """The digest by which EVALSHA finds the script."""
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


class Record(NamedTuple):
    """One operation on one job. A script call carries many records."""

    operation: str
    keys: Sequence[str]
    args: Sequence[Argument]
    #: The worker (`sluice.common.jobs.store.WorkerIdentity`), if the operation needs it.
    identity: tuple[Argument, ...] = ()
    #: Approximate size in bytes; 0 if it is small.
    size: int = 0
    #: Arguments to use if the record may have been sent before, if they differ.
    repeated: Sequence[Argument] = ()


class Reply(NamedTuple):
    """The answer of an operation, with its values."""

    answer: queue.Answer
    value: bytes | int | None = None
    more: Sequence[bytes] = ()


class BatchScript(Script, ABC):
    """A script that runs many records in one call."""

    @abstractmethod
    def pack(
        self, keys: JobKeys, records: Iterable[Record], *, again: bool = False
    ) -> list[Argument]:
        """Arguments of EVALSHA after the digest: number of keys, keys, arguments.

        `again` is True if the records may have been sent before.
        """


def lua_enum_names(enums: Mapping[str, type]) -> dict[str, str]:
    """Names and Lua literals of the members of enums, such as `JOB_STATUS` and `'status'`."""
    return {
        f"{prefix}_{name}": f"'{value}'"
        for prefix, names in enums.items()
        for name, value in members_of(names).items()
    }


def render_lua(source: str, names: Mapping[str, str]) -> str:
    """Replace every `$NAME` by the contract's literal."""
    return re.sub(r"\$([A-Z_]+)", lambda match: names[match[1]], source)


def read_lua(directory: Path, name: str) -> str:
    """The source of `name.lua` in the directory or a subdirectory."""
    [path] = directory.rglob(f"{name}.lua")
    return path.read_text()


def plain_script(source: str) -> Script:
    """A script that needs no rendering."""
    return Script(lambda: source)


_ANSWERS = {answer.value.encode(): answer for answer in queue.Answer}


def unpack(raw: list[bytes | int]) -> Reply | SluiceError:
    """Parse the reply to one record. An error that concerns only this record is returned."""
    answer = _ANSWERS[raw[0]]  # type: ignore[index]
    value = raw[1] if len(raw) > 1 else None
    if answer is not queue.Answer.FAILED:
        return Reply(answer, value, raw[2:]) if len(raw) > 2 else Reply(answer, value)  # type: ignore[arg-type]
    message = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return StoreUnavailable(message) if is_transient(message) else CorruptKey(message)


def is_transient(message: str) -> bool:
    """True for an error of Redis that may pass."""
    return _TRANSIENT.match(message) is not None


def is_wrong_server(message: str) -> bool:
    """True for an error of Redis that means that another server has the data now."""
    found = _TRANSIENT.match(message)
    return found is not None and found["elsewhere"] is not None


async def run_script(
    client: Redis | CommandClient, script: Script, keys: Sequence[str], args: Sequence[Argument]
) -> Any:
    """Run a script; raises the error of Redis or of the network."""
    return await run_packed(client, script, (len(keys), *keys, *args))


async def run_packed(
    client: Redis | CommandClient, script: Script, packed: Sequence[EncodableT]
) -> Any:
    """Like `run_script`, with the number of keys, the keys and the arguments in one sequence.

    The source is sent only if Redis does not know the digest: at the first call, and after a
    restart or SCRIPT FLUSH.
    """
    execute: Any = client.execute_command  # untyped in redis-py
    try:
        return await execute("EVALSHA", script.sha, *packed)
    except NoScriptError:
        return await execute("EVAL", script.source, *packed)


def run_packed_blocking(client: BlockingRedis, script: Script, packed: Sequence[EncodableT]) -> Any:
    execute: Any = client.execute_command
    try:
        return execute("EVALSHA", script.sha, *packed)
    except NoScriptError:
        return execute("EVAL", script.source, *packed)
