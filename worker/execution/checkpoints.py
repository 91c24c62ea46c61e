"""Checkpoints: results of steps that later attempts of a job can read."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from sluice.common import codec
from sluice.common.errors import CorruptKey

#: Limits: bytes of JSON per step, steps per job, and characters of a step's name.
MAX_STEP_BYTES = 64 * 1024
MAX_STEPS = 256
MAX_NAME_CHARS = 100


class CheckpointStore(Protocol):
    """Reads and writes the steps of one attempt. Both methods raise AttemptLost."""

    async def save(self, name: str, value: bytes) -> None:
        """Store a step. It is in Redis when this returns."""

    async def saved(self) -> dict[str, bytes]:
        """All stored steps of the job, by name."""


class Checkpoints:
    """The steps of a job, read once per attempt and then cached.

    Only the current attempt writes them.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._cache: dict[str, bytes] | None = None
        #: Saves one step at a time, so that the number of steps is known.
        self._lock = asyncio.Lock()

    async def all(self) -> dict[str, Any]:
        """All steps by name. The values are decoded anew, so the caller may change them."""
        async with self._lock:
            known = dict(await self._read())
        return {name: _decode_value(name, raw) for name, raw in known.items()}

    async def save(self, name: str, value: Any) -> None:
        """Store a step; raises ValueError if it exceeds a limit."""
        _check_name(name)
        encoded = codec.dumps(value)
        if len(encoded) > MAX_STEP_BYTES:
            raise ValueError(
                f"step {name!r} has {len(encoded)} bytes of JSON; {MAX_STEP_BYTES} at most: save "
                "what is needed to continue, and keep the rest elsewhere"
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
                self._cache = None  # whether it was stored is unknown: read again
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
    except ValueError as error:  # not skipped, because the handler might run the step twice
        raise CorruptKey(f"the saved step {name!r} is not valid JSON: {error}") from None
