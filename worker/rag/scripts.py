"""The atomic changes of a namespace: `lua/*.lua`, their names rendered from the contracts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from common.contracts.jobs import LeaseField
from common.contracts.rag import ClaimKind, DocumentField
from common.contracts.scripts import Answer
from common.scripts import names_of, rendered

_LUA: Final = Path(__file__).with_name("lua")
_ENUMS: Final[dict[str, type[Enum]]] = {
    "LEASE": LeaseField,
    "DOCUMENT": DocumentField,
    "CLAIM": ClaimKind,
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
        self.source = rendered((_LUA / f"{name}.lua").read_text(), names_of(_ENUMS))
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


COMMIT: Final = Script("commit")
REMOVE: Final = Script("remove")
ATTACH: Final = Script("attach")
