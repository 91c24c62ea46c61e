"""Waits until a condition holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def eventually(condition: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """Waits until a condition (which may be async) is true; fails after the timeout."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"{condition} did not hold within {timeout_s} s")
        await asyncio.sleep(0.01)
