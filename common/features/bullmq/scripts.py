"""Our scripts: `lua/*.lua` around those of the package, and how they are run."""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from redis.exceptions import OutOfMemoryError, RedisError, ResponseError
from redis.typing import EncodableT

from common.aio import wait_for
from common.contracts.bullmq import BullAnswer, BullField
from common.errors import CorruptKey, StoreUnavailable
from common.features.bullmq import package
from common.redis import scripts
from common.redis.connection import TRANSIENT_ERRORS
from common.redis.pipelined import CommandClient
from common.redis.scripts import Script, is_transient, run_script

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
    """One of ours around one of the package's, whole or in its two parts."""
    text = (_LUA / f"{operation}.lua").read_text()
    functions, body = package.split_script(inner)
    places = {"$SCRIPT\n": functions + body, "$FUNCTIONS\n": functions, "$BODY\n": body}
    for place in places:
        text = text.replace(place, _mark(place))  # out of the way of names
    text = scripts.render_lua(text, lua_constants())
    for place, foreign in places.items():
        text = text.replace(_mark(place), foreign)
    return scripts.plain_script(text)


def _mark(place: str) -> str:
    return f"--[[ the package's {place.strip('$').lower().strip()} ]]\n"


class ScriptRunner:
    """Runs them over one connection; what Redis cannot do now becomes StoreUnavailable."""

    def __init__(self, wire: CommandClient, retry_for_s: float) -> None:
        self._wire = wire
        self._retry_for_s = retry_for_s

    async def run(
        self, wanted: Script, keys: list[str], args: list[Any], *, repeatable: bool
    ) -> list[Any]:
        """A script's answer. `repeatable`: may be sent again where nobody knows whether it ran."""
        try:
            return await wait_for(
                self._retry_for_s, self._run(wanted, keys, args, repeatable=repeatable)
            )
        except asyncio.TimeoutError:
            raise StoreUnavailable("no answer in time") from None
        except TRANSIENT_ERRORS as error:
            raise StoreUnavailable(str(error)) from error
        except ResponseError as error:
            message = str(error)
            # redis-py takes the word away by which the one is known.
            passing = isinstance(error, OutOfMemoryError) or is_transient(message)
            kind = StoreUnavailable if passing else CorruptKey
            raise kind(message) from error
        except RedisError as error:
            raise StoreUnavailable(str(error)) from error

    async def command(self, *args: EncodableT) -> Any:
        """A plain command's reply; None where the key is of another type. Raises what Redis does
        otherwise."""
        try:
            return await self._wire.execute_command(*args)
        except ResponseError:
            return None

    async def _run(
        self, wanted: Script, keys: list[str], args: list[Any], *, repeatable: bool
    ) -> list[Any]:
        pause_s = FIRST_BACKOFF_S
        while True:
            try:
                return await run_script(self._wire, wanted, keys, args)  # type: ignore[no-any-return]
            except TRANSIENT_ERRORS as error:
                if not repeatable:
                    raise
                log.debug("a script is sent again: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_BACKOFF_S)
