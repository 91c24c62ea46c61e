"""Lua scripts: rendering, the records that one call carries, replies, and running them."""

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

from common.contracts import members_of, queue
from common.contracts.jobs import JobKeys
from common.errors import CorruptKey, SluiceError, StoreUnavailable
from common.redis.pipelined import CommandClient

Argument = str | bytes | int

#: Errors that pass by themselves: memory freed, disk back, replica promoted, slot moved. Only the
#: word with which Redis begins one counts, after what it and Lua may put before it: anybody's key
#: may be called LOADING.
_TRANSIENT = re.compile(
    r"(?:ERR )?(?:Error running script \([^()]*\): )?(?:\S*user_script: ?\d+: )*"
    r"-?(?:(?P<elsewhere>READONLY|MOVED|CLUSTERDOWN|MASTERDOWN)"
    r"|OOM|MISCONF|NOREPLICAS|LOADING|BUSY|ASK|TRYAGAIN)\b"
)


class Script:
    """Lua source and its SHA-1 digest.

    It is rendered when it is first sent: not every process sends all there are.
    """

    def __init__(self, render: Callable[[], str]) -> None:
        self._render = render

    @cached_property
    def source(self) -> str:
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
    #: Who does it (`common.jobs.store.WorkerIdentity`), where the operation wants to know.
    identity: tuple[Argument, ...] = ()
    #: Roughly how many bytes it carries, where that may be many.
    size: int = 0
    #: Its arguments where it may have been sent before, if they differ then.
    repeated: Sequence[Argument] = ()


class Reply(NamedTuple):
    """An operation's answer and what came with it."""

    answer: queue.Answer
    value: bytes | int | None = None
    more: Sequence[bytes] = ()


class BatchScript(Script, ABC):
    """A script that runs many records in one call."""

    @abstractmethod
    def pack(
        self, keys: JobKeys, records: Iterable[Record], *, again: bool = False
    ) -> list[Argument]:
        """EVALSHA's arguments after the script itself: key count, keys, arguments.

        `again`: the records may have been sent before.
        """


def lua_enum_names(enums: Mapping[str, type]) -> dict[str, str]:
    """What Lua calls the members of enums, and their literals: `JOB_STATUS`, `'status'`."""
    return {
        f"{prefix}_{name}": f"'{value}'"
        for prefix, names in enums.items()
        for name, value in members_of(names).items()
    }


def render_lua(source: str, names: Mapping[str, str]) -> str:
    """Lua with every `$NAME` replaced by the contract's literal."""
    return re.sub(r"\$([A-Z_]+)", lambda match: names[match[1]], source)


def read_lua(directory: Path, name: str) -> str:
    """The source of `name.lua`, in the directory or one below it."""
    [path] = directory.rglob(f"{name}.lua")
    return path.read_text()


def plain_script(source: str) -> Script:
    """A script that needs no rendering."""
    return Script(lambda: source)


_ANSWERS = {answer.value.encode(): answer for answer in queue.Answer}


def unpack(raw: list[bytes | int]) -> Reply | SluiceError:
    """One record's reply, or the error that befell it alone."""
    answer = _ANSWERS[raw[0]]  # type: ignore[index]
    value = raw[1] if len(raw) > 1 else None
    if answer is not queue.Answer.FAILED:
        return Reply(answer, value, raw[2:]) if len(raw) > 2 else Reply(answer, value)  # type: ignore[arg-type]
    message = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return StoreUnavailable(message) if is_transient(message) else CorruptKey(message)


def is_transient(message: str) -> bool:
    """Whether an error of Redis passes by itself."""
    return _TRANSIENT.match(message) is not None


def is_wrong_server(message: str) -> bool:
    """Whether an error of Redis says that another server has the data by now."""
    found = _TRANSIENT.match(message)
    return found is not None and found["elsewhere"] is not None


async def run_script(
    client: Redis | CommandClient, script: Script, keys: Sequence[str], args: Sequence[Argument]
) -> Any:
    """A script's reply; raises what Redis or the network answered."""
    return await run_packed(client, script, (len(keys), *keys, *args))


async def run_packed(
    client: Redis | CommandClient, script: Script, packed: Sequence[EncodableT]
) -> Any:
    """The same with the number of keys, the keys and the arguments in one sequence.

    Redis gets the source only if it does not know the digest: after SCRIPT FLUSH, a restart, or
    before the first call.
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
