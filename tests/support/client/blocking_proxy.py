"""A blocking wrapper of the asyncio client, so that one test covers both clients."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any


class BlockingProxy:
    """Wraps an object of the asyncio client; every method call blocks until it is done."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if inspect.ismethod(found):
            return lambda *args, **named: self._result(found(*args, **named))
        return self._result(found)

    def _result(self, value: Any) -> Any:
        if inspect.iscoroutine(value):
            value = self._loop.run_until_complete(value)
        if inspect.isasyncgen(value):
            return self._each(value)
        if type(value).__module__.startswith("sluice.aio"):
            return BlockingProxy(value, self._loop)
        return value

    def _each(self, values: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.run_until_complete(values.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(values.aclose())
