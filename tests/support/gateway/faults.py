"""Replacements of asynchronous methods: they fail, fail at first, or record their calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest


def raising(error: Exception) -> Callable[..., Awaitable[Any]]:
    """A function that always fails."""

    async def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def fail_first(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *errors: Exception
) -> list[Exception]:
    """Let the first calls of a method fail; returns the errors that are left."""
    real, left = getattr(owner, name), list(errors)

    async def call(*args: Any, **options: Any) -> Any:
        if left:
            raise left.pop(0)
        return await real(*args, **options)

    monkeypatch.setattr(owner, name, call)
    return left


def record_calls(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[Any]:
    """Record the arguments of every call of a method."""
    real, calls = getattr(owner, name), []

    async def call(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return await real(*args, **options)

    monkeypatch.setattr(owner, name, call)
    return calls
