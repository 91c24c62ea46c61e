"""Sluice's BullMQ scripts, which wrap those of the package, and how they are run."""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from redis.exceptions import OutOfMemoryError, RedisError, ResponseError
from redis.typing import EncodableT

from sluice.common.aio import wait_for
from sluice.common.contracts.bullmq import BullAnswer, BullField
from sluice.common.errors import CorruptKey, StoreUnavailable
from sluice.common.features.bullmq import package
from sluice.common.redis import scripts
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.pipelined import CommandClient
from sluice.common.redis.scripts import Script, is_transient, run_script

log = logging.getLogger(__name__)

_LUA: Final = Path(__file__).with_name("lua")
ADD: Final = "add"
GET: Final = "get"
REMOVE: Final = "remove"
COMPLETE: Final = "complete"
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.05, 0.5


def lua_constants() -> dict[str, str]:
    return scripts.lua_enum_names({"ANSWER": BullAnswer, "FIELD": BullField})


@lru_cache
def wrap_script(operation: str, inner: str) -> Script:
    """One of Sluice's scripts around one of the package's."""
    text = (_LUA / f"{operation}.lua").read_text()
    functions, body = package.split_script(inner)
    parts = {"$SCRIPT\n": functions + body, "$FUNCTIONS\n": functions, "$BODY\n": body}
    for name in parts:
        text = text.replace(name, _mark(name))  # protects them while names are rendered
    text = scripts.render_lua(text, lua_constants())
    for name, source in parts.items():
        text = text.replace(_mark(name), source)
    return scripts.plain_script(text)


def _mark(name: str) -> str:
    return f"--[[ the package's {name.strip('$').lower().strip()} ]]\n"


class ScriptRunner:
    """Runs scripts over one connection; raises StoreUnavailable for temporary errors."""

    def __init__(self, wire: CommandClient, retry_for_s: float) -> None:
        self._wire = wire
        self._retry_for_s = retry_for_s

    async def run(
        self, script: Script, keys: list[str], args: list[Any], *, repeatable: bool
    ) -> list[Any]:
        """A script's reply. `repeatable`: may be sent again if it is unknown whether it ran."""
        try:
            return await wait_for(
                self._retry_for_s, self._run(script, keys, args, repeatable=repeatable)
            )
        except asyncio.TimeoutError:
            raise StoreUnavailable("no answer in time") from None
        except TRANSIENT_ERRORS as error:
            raise StoreUnavailable(str(error)) from error
        except ResponseError as error:
            message = str(error)
            # redis-py removes the prefix OOM from the message.
            transient = isinstance(error, OutOfMemoryError) or is_transient(message)
            kind = StoreUnavailable if transient else CorruptKey
            raise kind(message) from error
        except RedisError as error:
            raise StoreUnavailable(str(error)) from error

    async def command(self, *args: EncodableT) -> Any:
        """A plain command's reply; None if the key has the wrong type. Raises other errors of
        Redis."""
        try:
            return await self._wire.execute_command(*args)
        except ResponseError:
            return None

    async def _run(
        self, script: Script, keys: list[str], args: list[Any], *, repeatable: bool
    ) -> list[Any]:
        pause_s = FIRST_BACKOFF_S
        while True:
            try:
                return await run_script(self._wire, script, keys, args)  # type: ignore[no-any-return]
            except TRANSIENT_ERRORS as error:
                if not repeatable:
                    raise
                log.debug("sending a script again: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_BACKOFF_S)
