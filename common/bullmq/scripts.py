"""Our scripts: `lua/*.lua` around those of the package, and how they are run."""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError, ResponseError
from redis.typing import EncodableT

from common import scripts
from common.bullmq import package
from common.connection import TRANSIENT_ERRORS
from common.contracts.bullmq import BullAnswer, BullField
from common.errors import CorruptKey, StoreUnavailable
from common.patience import within
from common.scripts import Script, is_passing
from common.wire import Commander

log = logging.getLogger(__name__)

_LUA: Final = Path(__file__).with_name("lua")
ADD: Final = "add"
LOOK: Final = "look"
REMOVE: Final = "remove"
COMPLETE: Final = "complete"
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.05, 0.5


def names() -> dict[str, str]:
    """Every name in our Lua."""
    return scripts.names_of({"ANSWER": BullAnswer, "FIELD": BullField})


@lru_cache
def script(operation: str, inner: str) -> Script:
    """One of ours around one of the package's, whole or in its two parts."""
    text = (_LUA / f"{operation}.lua").read_text()
    functions, body = package.parts_of(inner)
    places = {"$SCRIPT\n": functions + body, "$FUNCTIONS\n": functions, "$BODY\n": body}
    for place in places:
        text = text.replace(place, _mark(place))  # out of the way of names
    text = scripts.rendered(text, names())
    for place, foreign in places.items():
        text = text.replace(_mark(place), foreign)
    return scripts.script_of(text)


def _mark(place: str) -> str:
    return f"--[[ the package's {place.strip('$').lower().strip()} ]]\n"


class Runner:
    """Runs them over one connection; what Redis cannot do now becomes StoreUnavailable."""

    def __init__(self, wire: Commander, patience_s: float) -> None:
        self._wire = wire
        self._patience_s = patience_s

    async def run(
        self, wanted: Script, keys: list[str], args: list[Any], *, repeatable: bool
    ) -> list[Any]:
        """A script's answer. `repeatable`: may be sent again where nobody knows whether it ran."""
        command: tuple[EncodableT, ...] = (len(keys), *keys, *args)
        try:
            return await within(self._patience_s, self._run(wanted, command, repeatable=repeatable))
        except asyncio.TimeoutError:
            raise StoreUnavailable("no answer in time") from None
        except TRANSIENT_ERRORS as error:
            raise StoreUnavailable(str(error)) from error
        except ResponseError as error:
            message = str(error)
            # redis-py takes the word away by which the one is known.
            passing = isinstance(error, OutOfMemoryError) or is_passing(message)
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
        self, wanted: Script, command: tuple[EncodableT, ...], *, repeatable: bool
    ) -> list[Any]:
        pause_s = FIRST_BACKOFF_S
        while True:
            try:
                return await self._once(wanted, command)
            except TRANSIENT_ERRORS as error:
                if not repeatable:
                    raise
                log.debug("a script is sent again: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_BACKOFF_S)

    async def _once(self, wanted: Script, command: tuple[EncodableT, ...]) -> list[Any]:
        try:
            reply: list[Any] = await self._wire.execute_command("EVALSHA", wanted.sha, *command)
        except NoScriptError:
            reply = await self._wire.execute_command("EVAL", wanted.source, *command)
        return reply
