"""Job options: JSON round trip, invalid options, backoff delays; and task limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.limits import TaskLimit, group_name, parse_limits
from sluice.common.jobs.options import NO_OPTIONS, UNKNOWN_TENANT, Backoff, JobOptions

UNREADABLE = (b"\xff", b"{", b"[]", b"null", b"7", b'"text"')
seconds = st.floats(0, 86_400)
backoffs = st.builds(
    Backoff, initial_s=seconds, factor=st.floats(1, 100), max_s=seconds, jitter=st.floats(0, 1)
)


tenants = st.text("az09-", min_size=1, max_size=21).filter(lambda name: name[0] != "-")


@given(
    st.builds(
        JobOptions,
        st.none() | st.floats(0.001, 86_400),
        st.none() | backoffs,
        tenant=st.none() | tenants,
        tools=st.none() | st.lists(st.text(max_size=5), max_size=3).map(tuple),
    )
)
def test_options_survive_a_json_round_trip(options: JobOptions) -> None:
    assert JobOptions.from_json(options.to_json()) == options


def test_the_json_has_the_names_of_the_request_or_is_empty() -> None:
    assert NO_OPTIONS.to_json() == b""
    assert JobOptions.from_json(b"") == NO_OPTIONS
    options = JobOptions(1.5, Backoff(1.0, 2.0, 3.0, 0.25))
    assert options.to_json() == (
        b'{"timeout_s":1.5,"backoff":{"initial_s":1.0,"factor":2.0,"max_s":3.0,"jitter":0.25}}'
    )


def test_missing_members_have_defaults() -> None:
    options = JobOptions.from_json(b'{"backoff":{"initial_s":9},"more":1}')
    assert options == JobOptions(None, Backoff(initial_s=9.0))
    assert JobOptions.from_json(b'{"backoff":{"unheard_of":9}}') == JobOptions(None, Backoff())


@pytest.mark.parametrize(
    "raw",
    [
        *UNREADABLE,
        *(b'{"timeout_s":%b}' % value for value in (b'"soon"', b"[1]", b"{}")),
        *(b'{"backoff":%b}' % value for value in (b"7", b"[1]")),
        *(b'{"backoff":{"factor":%b}}' % value for value in (b'"much"', b"null")),
        b'{"timeout_s":1' + b"0" * 400 + b"}",
        b"[" * 5000 + b"]" * 5000,
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_invalid_options_are_ignored(raw: bytes) -> None:
    """Only a third party could have written them; a worker must tolerate them."""
    options = JobOptions.from_json(raw)
    assert replace(options, tenant=None, tools=None) == NO_OPTIONS


#: Options without valid permissions, and the tenant and tools that they grant.
NO_PERMISSIONS = {
    **dict.fromkeys(UNREADABLE, (UNKNOWN_TENANT, ())),
    **{
        b'{"timeout_s":1,"tools":%b}' % tools: (None, ())
        for tools in (
            b"null",
            b"7",
            b'"search"',
            b'{"search":true}',
            b'["a",7]',
            b"[[]]",
            b"[null]",
        )
    },
    **{
        b'{"tenant":%b}' % tenant: (UNKNOWN_TENANT, None)
        for tenant in (b"7", b"[]", b'""', b'"A"', b'"a:b"', b'"' + b"a" * 64 + b'"')
    },
}


@pytest.mark.parametrize("raw", NO_PERMISSIONS)
def test_invalid_permissions_grant_nothing(raw: bytes) -> None:
    options = JobOptions.from_json(raw)
    assert (options.tenant, options.tools) == NO_PERMISSIONS[raw]


def test_permissions_survive_other_invalid_options() -> None:
    options = JobOptions.from_json(b'{"timeout_s":"soon","tenant":"shop","tools":["search"]}')
    assert options == JobOptions(tenant="shop", tools=("search",))
    assert JobOptions.from_json(b'{"tenant":"shop","tools":[]}') == JobOptions(
        tenant="shop", tools=()
    )


@given(st.binary(max_size=60))
def test_any_bytes_can_be_parsed(raw: bytes) -> None:
    assert isinstance(JobOptions.from_json(raw), JobOptions)


@given(backoffs, st.integers(-5, 10_000))
def test_delays_stay_within_their_limits(backoff: Backoff, failures: int) -> None:
    wait_s = backoff.delay_s(failures)
    assert math.isfinite(wait_s)
    assert 0 <= wait_s <= backoff.max_s


def test_delays_grow_and_jitter_shortens_them_by_its_share() -> None:
    backoff = Backoff(initial_s=1.0, factor=3.0, max_s=20.0, jitter=0.0)
    assert [backoff.delay_s(failures) for failures in range(1, 6)] == [1.0, 3.0, 9.0, 20.0, 20.0]
    backoff = Backoff(initial_s=10.0, factor=1.0, max_s=10.0, jitter=0.3)
    waits = {backoff.delay_s(1) for _ in range(200)}
    assert min(waits) >= 7.0
    assert max(waits) <= 10.0
    assert len(waits) > 100


# -- Task limits in settings: groups of tasks share their slots, and errors are specific ----------


def test_one_task_and_several() -> None:
    limits = parse_limits(" chat + plan+code : 1 , embed:4,")
    assert limits == (
        TaskLimit(frozenset({"chat", "plan", "code"}), 1),
        TaskLimit(frozenset({"embed"}), 4),
    )
    assert parse_limits("") == parse_limits(" , ") == ()


def test_the_name_does_not_depend_on_the_order() -> None:
    for text in ("code+plan+chat:2", "chat+code+plan:2", "plan+chat+code:2"):
        [limit] = parse_limits(text)
        assert limit.name == "chat+plan+code"
    assert JobKeys().running("chat+plan+code") == "jobs:stream:running:chat+plan+code"
    assert group_name({"rag"}) == "rag"
    assert group_name(["dance", "embed", "chat"]) == "chat+embed+dance"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("dance:1", "names an unknown task 'dance'"),
        ("chat+dance:1", "names an unknown task 'dance'"),
        ("chat+:1", "names an unknown task ''"),
        (":1", "names an unknown task ''"),
        ("chat", "a number from 1"),
        ("chat:0", "a number from 1"),
        ("chat:-1", "a number from 1"),
        ("chat+plan:x", r"such as chat\+plan:1"),
        ("chat:1,chat:2", "chat is limited twice"),
        ("chat+plan:1,code+plan:1", "plan is limited twice"),
        ("chat+chat:1", "chat is limited twice"),
    ],
)
def test_an_invalid_setting_names_the_problem(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_limits(text)
