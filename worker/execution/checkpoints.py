"""What a handler has got done and need not do again: steps that outlive the attempt."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from common import codec
from common.errors import CorruptKey

#: Bytes of JSON that a step may have, steps that a job may have, and characters of a step's name.
MAX_STEP_BYTES = 64 * 1024
MAX_STEPS = 256
MAX_NAME_CHARS = 100


class CheckpointStore(Protocol):
    """Where the steps of one attempt are written and read; both raise AttemptLost."""

    async def save(self, name: str, value: bytes) -> None:
        """Keep a step; it is there when this returns."""

    async def saved(self) -> dict[str, bytes]:
        """Every step that is kept."""


class Checkpoints:
    """The steps of a job as one attempt sees them: read once, then known.

    Nobody else writes them while the attempt is the current one.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._cache: dict[str, bytes] | None = None
        #: One at a time, or else their number would be anybody's guess.
        self._lock = asyncio.Lock()

    async def all(self) -> dict[str, Any]:
        """Name and value of each; a value of one's own every time."""
        async with self._lock:
            known = dict(await self._read())
        return {name: _decode_value(name, raw) for name, raw in known.items()}

    async def save(self, name: str, value: Any) -> None:
        """Keep one; raises ValueError for what is too much before Redis is asked."""
        _check_name(name)
        encoded = codec.dumps(value)
        if len(encoded) > MAX_STEP_BYTES:
            raise ValueError(
                f"step {name!r} has {len(encoded)} bytes of JSON; {MAX_STEP_BYTES} at most: save "
                "what is needed to go on, and keep the rest elsewhere"
            )
        async with self._lock:
            known = await self._read()
            if name not in known and len(known) >= MAX_STEPS:
                raise ValueError(
                    f"step {name!r} would be one more than the {MAX_STEPS} that a job may have; "
                    "save several things in one step"
                )
            try:
                await self._store.save(name, encoded)
            except BaseException:
                self._cache = None  # it may be there or not: ask again
                raise
            known[name] = encoded

    async def _read(self) -> dict[str, bytes]:
        if self._cache is None:
            self._cache = await self._store.saved()
        return self._cache


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"the name of a step must be a str, not {name!r}")
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise ValueError(
            f"{name!r} cannot name a step; use 1 to {MAX_NAME_CHARS} printable characters"
        )


def _decode_value(name: str, raw: bytes) -> Any:
    try:
        return codec.loads(raw)
    except ValueError as error:  # a foreign hand; to leave it out might be to do it twice
        raise CorruptKey(f"what was saved as step {name!r} is no JSON: {error}") from None
