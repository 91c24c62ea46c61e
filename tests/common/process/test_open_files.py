"""raise_file_limit raises the soft limit of open files."""

from __future__ import annotations

import resource

import pytest

from common.process import usage


@pytest.mark.parametrize(
    ("limits", "wanted", "allowed", "becomes"),
    [
        ((1024, 4096), 900, 1024, None),
        ((1024, 4096), 2000, 2000, (2000, 4096)),
        ((1024, 4096), 9000, 4096, (4096, 4096)),
        ((1024, resource.RLIM_INFINITY), 9000, 9000, (9000, 9000)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 9000, 9000, None),
    ],
)
def test_the_soft_limit_is_raised_up_to_the_hard_limit(
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[int, int],
    wanted: int,
    allowed: int,
    becomes: tuple[int, int] | None,
) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda what, pair: made.append(pair))
    assert usage.raise_file_limit(wanted) == allowed
    assert made == ([] if becomes is None else [becomes])
