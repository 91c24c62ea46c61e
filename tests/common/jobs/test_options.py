"""Options of a job: they go round, junk counts as none, and waits stay within their limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.jobs.options import NO_OPTIONS, UNKNOWN_TENANT, Backoff, JobOptions

seconds = st.floats(0, 86_400)
backoffs = st.builds(
    Backoff,
    initial_s=seconds,
    factor=st.floats(1, 100),
    max_s=seconds,
    jitter=st.floats(0, 1),
)


tenants = st.from_regex(r"\A[a-z0-9][a-z0-9-]{0,20}\Z")


@given(
    st.builds(
        JobOptions,
        st.none() | st.floats(0.001, 86_400),
        st.none() | backoffs,
        tenant=st.none() | tenants,
        tools=st.none() | st.lists(st.text(max_size=5), max_size=3).map(tuple),
    )
)
def test_options_go_round(options: JobOptions) -> None:
    assert JobOptions.from_json(options.to_json()) == options


def test_no_wishes_take_no_room() -> None:
    assert NO_OPTIONS.to_json() == b""
    assert JobOptions.from_json(b"") == NO_OPTIONS


def test_the_json_is_what_the_request_says() -> None:
    options = JobOptions(1.5, Backoff(1.0, 2.0, 3.0, 0.25))
    assert options.to_json() == (
        b'{"timeout_s":1.5,"backoff":{"initial_s":1.0,"factor":2.0,"max_s":3.0,"jitter":0.25}}'
    )


def test_what_is_not_said_is_the_default() -> None:
    options = JobOptions.from_json(b'{"backoff":{"initial_s":9},"more":1}')
    assert options == JobOptions(None, Backoff(initial_s=9.0))
    assert JobOptions.from_json(b'{"backoff":{"unheard_of":9}}') == JobOptions(None, Backoff())


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff",
        b"{",
        b"[]",
        b"null",
        b"7",
        b'"text"',
        b'{"timeout_s":"soon"}',
        b'{"timeout_s":[1]}',
        b'{"timeout_s":{}}',
        b'{"backoff":7}',
        b'{"backoff":[1]}',
        b'{"backoff":{"factor":"much"}}',
        b'{"backoff":{"factor":null}}',
        b'{"timeout_s":1' + b"0" * 400 + b"}",
        b"[" * 5000 + b"]" * 5000,
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_junk_counts_as_no_wish(raw: bytes) -> None:
    """Only a foreign hand could have written it; a worker must not stumble over it."""
    options = JobOptions.from_json(raw)
    assert replace(options, tenant=None, tools=None) == NO_OPTIONS


@pytest.mark.parametrize("raw", [b"\xff", b"{", b"[]", b"null", b"7", b'"text"'])
def test_what_nobody_can_read_gives_no_rights(raw: bytes) -> None:
    options = JobOptions.from_json(raw)
    assert (options.tenant, options.tools) == (UNKNOWN_TENANT, ())


@pytest.mark.parametrize(
    "tools", [b"null", b"7", b'"search"', b'{"search":true}', b'["search",7]', b"[[]]", b"[null]"]
)
def test_junk_among_the_tools_is_no_tool_at_all(tools: bytes) -> None:
    options = JobOptions.from_json(b'{"timeout_s":1,"tools":%b}' % tools)
    assert options == JobOptions(1.0, tools=())


@pytest.mark.parametrize("tenant", [b"7", b"[]", b'""', b'"A"', b'"a:b"', b'"' + b"a" * 64 + b'"'])
def test_junk_is_nobody_s_job_and_not_everybody_s(tenant: bytes) -> None:
    assert JobOptions.from_json(b'{"tenant":%b}' % tenant).tenant == UNKNOWN_TENANT


def test_rights_survive_wishes_that_are_junk() -> None:
    options = JobOptions.from_json(b'{"timeout_s":"soon","tenant":"shop","tools":["search"]}')
    assert options == JobOptions(tenant="shop", tools=("search",))
    assert JobOptions.from_json(b'{"tenant":"shop","tools":[]}') == JobOptions(
        tenant="shop", tools=()
    )


@given(st.binary(max_size=60))
def test_any_bytes_are_some_options(raw: bytes) -> None:
    assert isinstance(JobOptions.from_json(raw), JobOptions)


@given(backoffs, st.integers(-5, 10_000))
def test_waits_stay_within_their_limits(backoff: Backoff, failures: int) -> None:
    wait_s = backoff.delay_s(failures)
    assert math.isfinite(wait_s)
    assert 0 <= wait_s <= backoff.max_s


def test_waits_grow_from_attempt_to_attempt() -> None:
    backoff = Backoff(initial_s=1.0, factor=3.0, max_s=20.0, jitter=0.0)
    assert [backoff.delay_s(failures) for failures in range(1, 6)] == [1.0, 3.0, 9.0, 20.0, 20.0]


def test_jitter_takes_away_at_most_its_part() -> None:
    backoff = Backoff(initial_s=10.0, factor=1.0, max_s=10.0, jitter=0.3)
    waits = {backoff.delay_s(1) for _ in range(200)}
    assert min(waits) >= 7.0
    assert max(waits) <= 10.0
    assert len(waits) > 100
