"""The atomic changes of a namespace: `lua/*.lua`, their names rendered from the contracts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from common.contracts.jobs import LeaseField
from common.contracts.rag import DocumentField
from common.contracts.scripts import Answer

_LUA: Final = Path(__file__).with_name("lua")
_ENUMS: Final[dict[str, type[Enum]]] = {
    "LEASE": LeaseField,
    "DOCUMENT": DocumentField,
    "ANSWER": Answer,
}
_ANSWERS: Final = {answer.value.encode(): answer for answer in Answer}


class Outcome(NamedTuple):
    """A script's answer, and the JSON that came with it."""

    answer: Answer
    value: bytes = b""


class Script:
    """One operation, sent by its digest and whole only where Redis does not know it yet."""

    def __init__(self, name: str) -> None:
        self.source = _rendered((_LUA / f"{name}.lua").read_text())
        self._sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    async def run(
        self, client: Redis, keys: Sequence[str], args: Sequence[str | bytes | int]
    ) -> Outcome:
        """Do it; raises what redis-py raises."""
        command: Any = client.execute_command  # untyped
        try:
            reply = await command("EVALSHA", self._sha, len(keys), *keys, *args)
        except NoScriptError:
            reply = await command("EVAL", self.source, len(keys), *keys, *args)
        return Outcome(_ANSWERS[reply[0]], *reply[1:])


def _rendered(source: str) -> str:
    names = {
        f"{prefix}_{member.name}": f"'{member.value}'"
        for prefix, enum in _ENUMS.items()
        for member in enum
    }
    return re.sub(r"\$([A-Z_]+)", lambda match: names[match[1]], source)


COMMIT: Final = Script("commit")
REMOVE: Final = Script("remove")
ATTACH: Final = Script("attach")
