"""Small scripts over the client for single commands: by digest, and whole where Redis has to learn.

Services may not load scripts (`SCRIPT LOAD`), which the library's own way needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from common.scripts import Script


async def evaluate(
    client: Redis, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]
) -> Any:
    """A script's reply; raises what Redis does."""
    command: Any = client  # its stubs know neither bytes nor numbers
    try:
        return await command.evalsha(script.sha, len(keys), *keys, *args)
    except NoScriptError:
        return await command.eval(script.source, len(keys), *keys, *args)
