"""The asyncio client behind the other one's face, so that one test tries both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any


class BlockingProxy:
    """An object of the asyncio client whose every method is waited for."""

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
