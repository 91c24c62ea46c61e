"""Creates the exception of a function in a pool process again, from its plain form.

Only exceptions of Python itself, `JobError`, `ReportedError` and their subclasses are created, with
plain arguments. Any other becomes a `ComputeError` with its text.
"""

from __future__ import annotations

import builtins
import math
from typing import Any, Final

from sluice.worker.errors import JobError, TransientError
from sluice.worker.execution.process_pool.errors import ComputeError, ReportedError

#: They have a meaning for the interpreter or for the pool.
_RESERVED: Final = (MemoryError, StopIteration, StopAsyncIteration)
_MOST_CHARS: Final = 500


def rebuilt_error(value: Any) -> Exception:
    """From class name, arguments, `retry_after_s` and text. Raises ValueError or TypeError."""
    name, arguments, retry_after_s, text = value
    found = _exception_class(str(name))
    if found is not None:
        try:
            error = found(*arguments)
        except Exception:  # created in another way than its arguments say
            found = None
    if found is None:
        return ComputeError(str(text)[:_MOST_CHARS])
    if isinstance(error, TransientError) and isinstance(retry_after_s, (int, float)):
        error.retry_after_s = retry_after_s if 0 <= retry_after_s < math.inf else None
    return error


def _exception_class(name: str) -> type[Exception] | None:
    """Only a class that is loaded already."""
    module, _, path = name.partition(":")
    if module == builtins.__name__:
        found = getattr(builtins, path, None)
        if not isinstance(found, type) or not issubclass(found, Exception):
            return None
        return None if issubclass(found, _RESERVED) else found
    waiting: list[type[Exception]] = [JobError, ReportedError]
    while waiting:
        each = waiting.pop()
        if f"{each.__module__}:{each.__qualname__}" == name:
            return each
        waiting += each.__subclasses__()
    return None
