"""Parsing of job options, as stored by different producers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.worker.bullmq.job import MOST_LOG_LINES, BullMQOptions, LockedJob, parse_options


def options(**given: Any) -> BullMQOptions:
    return parse_options(json.dumps(given).encode())


@pytest.mark.parametrize(("stored", "attempts"), [(None, 1), (0, 1), (1, 1), (4, 4), ("odd", 1)])
def test_0_and_1_attempts_both_mean_one_attempt(stored: Any, attempts: int) -> None:
    assert options(attempts=stored).request.max_attempts == attempts


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (None, [0.0, 0.0]),
        (250, [0.25, 0.25]),
        ({"type": "fixed", "delay": 100}, [0.1, 0.1]),
        ({"type": "exponential", "delay": 1000}, [1.0, 2.0, 4.0, 8.0]),
        ({"type": "exponential"}, [0.0, 0.0]),
        ({"type": "mine", "delay": 100}, [0.1, 0.1]),
        ("odd", [0.0]),
    ],
)
def test_backoff(backoff: Any, waits: list[float]) -> None:
    found = options(attempts=9, backoff=backoff).request.options.backoff
    assert found is not None
    assert [found.delay_s(failures) for failures in range(1, len(waits) + 1)] == waits


def test_jitter_shortens_the_delay_by_up_to_its_fraction() -> None:
    backoff = {"type": "exponential", "delay": 1000, "jitter": 0.5}
    found = options(backoff=backoff).request.options.backoff
    assert found is not None
    waits = [found.delay_s(2) for _ in range(300)]
    assert 1.0 <= min(waits) < 1.2
    assert 1.8 < max(waits) <= 2.0


@pytest.mark.parametrize(
    ("stored", "keep"),
    [
        (None, None),
        (True, {"count": 0}),
        (False, {"count": -1}),
        (5, {"count": 5}),
        (0, {"count": 0}),
        ({"age": 60, "count": 9}, {"age": 60, "count": 9}),
    ],
)
def test_which_ended_jobs_are_kept(stored: Any, keep: Any) -> None:
    given = {} if stored is None else {"removeOnComplete": stored, "removeOnFail": stored}
    assert options(**given).keep_completed == options(**given).keep_failed == keep


def test_invalid_options_are_ignored() -> None:
    for opts in (b"[]", b"{", b"7", b""):
        assert parse_options(opts).attempts == 0
        assert parse_options(opts).log_lines == MOST_LOG_LINES


def test_the_trace_of_the_producer_is_continued() -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    found = options(tm=json.dumps({"traceparent": parent})).request.options
    assert found.traceparent == parent
    assert options(tm="odd").request.options.traceparent is None


UUID = "0b51e4a8-6f0e-4b4c-9d5e-3413caa70e29"


@pytest.mark.parametrize(
    ("job_id", "sluice", "tenant", "tools"),
    [
        ("7", None, None, None),
        ("7", {"tenant": "shop"}, "shop", None),
        (UUID, {"tenant": "shop", "tools": ["calculator"]}, "shop", ("calculator",)),
        (UUID, {}, None, None),
        (UUID, None, "?", ()),
        ("mine-3413caa70e29", None, "?", ()),
        ("mine-3413CAA70E29", None, None, None),
        # Lua's JSON encoder writes an empty array as an object.
        (UUID, {"tenant": "shop", "tools": {}}, "shop", ()),
        (UUID, {"tenant": "Not A Tenant"}, "?", None),
        ("7", "odd", "?", ()),
        ("7", {"tenant": 7}, "?", None),
    ],
)
def test_permissions(job_id: str, sluice: Any, tenant: str | None, tools: Any) -> None:
    opts = json.dumps({} if sluice is None else {"sluice": sluice}).encode()
    job = LockedJob.from_hash([b"name", b"a", b"opts", opts], job_id, "t")
    found = job.claimed_job.request.options
    assert (found.tenant, found.tools) == (tenant, tools)


def test_a_corrupt_hash_is_parsed_nevertheless() -> None:
    job = LockedJob.from_hash([b"atm", b"x", b"timestamp", b"", b"name", b"\xff"], "1", "t")
    assert (job.attempts_made, job.due_ms, job.data) == (0, 0, b"null")
    assert job.claimed_job.lease.attempt == 1
