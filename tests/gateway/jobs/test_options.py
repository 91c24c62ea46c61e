"""Options of a job: timeout, attempts, backoff."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.contracts.queue import Answer
from common.jobs.options import Backoff, JobOptions
from common.jobs.store import Claim, WorkerIdentity
from tests.support.gateway.harness import CHAT, Gateway, check_problem

pytestmark = pytest.mark.fakeredis_only

DAYS_30 = 30 * 24 * 3600


def with_options(**changes: Any) -> bytes:
    return json.dumps({**CHAT, **changes}).encode()


INVALID_VALUES: dict[str, tuple[Any, ...]] = {
    "timeout_s": (0, -1.5, DAYS_30 + 1, True, "5", [5], 10**300),
    "max_attempts": (0, -1, 1001, 10**40, 3.0, True, "3"),
    "backoff": (5, [], "{}"),
    "backoff/initial": (1,),
    "backoff/initial_s": (-0.1, 3600.5, None),
    "backoff/factor": (0.99, 101, True),
    "backoff/max_s": (-1, 86401),
    "backoff/jitter": (-0.5, 1.01, "0.5"),
    "delay_s": (-1, DAYS_30 + 0.1, True, "5", 10**300),
    "run_at": (
        *(1760000000, "1760000000", True, "", "2026-01-01T00:00:00", "2026-01-01"),
        *("2026-01-01T00:00Z", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z"),
        *("2026-01-01T00:00:00+24:00", "0000-01-01T00:00:00Z", " 2026-01-01T00:00:00Z"),
        *("2026-01-01T00:00:00Z\n", "٢٠٢٦-01-01T00:00:00Z", "2999-01-01T00:00:00Z"),
        "9999-12-31T23:59:59-23:59",
    ),
}


def body_with(pointer: str, value: Any) -> bytes:
    member, _, part = pointer.partition("/")
    return with_options(**{member: {part: value} if part else value})


NEW_YEAR = "2026-01-01T00:00:00Z"
#: Body and pointers by name. Also parsed by FastAPI with the same model; see test_openapi.
INVALID_OPTIONS: dict[str, tuple[bytes, list[str]]] = {
    **{
        f"{pointer} {number}": (body_with(pointer, value), [f"/{pointer}"])
        for pointer, values in INVALID_VALUES.items()
        for number, value in enumerate(values)
    },
    "two faults": (
        with_options(backoff={"jitter": 2, "factor": 0}),
        ["/backoff/factor", "/backoff/jitter"],
    ),
    "delay and run_at": (with_options(delay_s=5, run_at=NEW_YEAR), ["/run_at"]),
    "delay 0 and run_at": (with_options(delay_s=0, run_at=NEW_YEAR), ["/run_at"]),
    "bad delay and run_at": (with_options(delay_s=-5, run_at=NEW_YEAR), ["/delay_s"]),
}


async def test_invalid_options_are_rejected(gateway: Gateway) -> None:
    for name, (body, pointers) in INVALID_OPTIONS.items():
        answer = await gateway.client.post(body, {"idempotency-key": "k"})
        problem = check_problem(answer, 422, "invalid_request")
        assert [fault["pointer"] for fault in problem["errors"]] == pointers, name
    for field in (b"timeout_s", b"delay_s", b"max_attempts"):
        for word in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
            body = b'{"task":"chat","payload":{},"%b":%b}' % (field, word)
            check_problem(await gateway.client.post(body), 400, "malformed_json")
    assert await gateway.redis.dbsize() == 0


GIVEN: list[tuple[dict[str, Any], JobOptions]] = [
    ({"timeout_s": 1}, JobOptions(timeout_s=1.0)),
    ({"timeout_s": DAYS_30}, JobOptions(timeout_s=float(DAYS_30))),
    ({"timeout_s": 0.001}, JobOptions(timeout_s=0.001)),
    ({"backoff": {}}, JobOptions(backoff=Backoff())),
    (
        {"backoff": {"initial_s": 0, "factor": 1, "max_s": 0, "jitter": 1}},
        JobOptions(backoff=Backoff(0.0, 1.0, 0.0, 1.0)),
    ),
    (
        {"backoff": {"initial_s": 3600, "factor": 100, "max_s": 86400}},
        JobOptions(backoff=Backoff(3600.0, 100.0, 86400.0)),
    ),
    ({"max_attempts": 1000, "timeout_s": None, "backoff": None}, JobOptions()),
]


async def test_a_worker_gets_the_options(gateway: Gateway) -> None:
    worker = WorkerIdentity("workers", "c1", 30_000, 600)
    for given, parsed in GIVEN:
        job_id = await gateway.create({**CHAT, **given})
        [(message_id, _)] = await gateway.redis.xrevrange(gateway.keys.queue, count=1)
        claim = Claim(job_id, message_id.decode(), "token")
        [reply] = await gateway.state.store.begin([claim], worker)
        assert not isinstance(reply, Exception)
        assert reply.answer is Answer.RUN
        most, _, options = reply.more
        assert most == (b"1000" if "max_attempts" in given else b"")
        assert (JobOptions.from_json(options) if options else JobOptions()) == parsed


PAST = "2020-01-01T00:00:00Z"


async def test_equivalent_options_are_the_same_request(gateway: Gateway) -> None:
    nothing = dict.fromkeys(("timeout_s", "max_attempts", "backoff", "delay_s", "run_at"))
    for number, (one, same) in enumerate(
        (
            ({}, nothing),
            ({"timeout_s": 5}, {"timeout_s": 5.0}),
            ({"backoff": {}}, {"backoff": {"factor": 2, "initial_s": 1}}),
            ({"run_at": PAST}, {"run_at": "2020-01-01t01:00:00.000+01:00"}),
            ({"delay_s": 60}, {"delay_s": 6e1}),
        )
    ):
        keyed = {"idempotency-key": f"k{number}"}
        first = await gateway.client.post({**CHAT, **one}, keyed)
        again = await gateway.client.post({**CHAT, **same}, keyed)
        assert (first.status, again.status, again.body) == (202, 202, first.body)
        assert again.header("idempotent-replayed") == "true"


async def test_different_options_are_another_request(gateway: Gateway) -> None:
    await gateway.create(idempotency_key="k")
    before = await gateway.snapshot()
    for other in (
        {"timeout_s": 6},
        {"max_attempts": 2},
        {"backoff": {}},
        {"delay_s": 0},
        {"run_at": PAST},
        {"payload": {"text": "hello", "none": None}},
    ):
        answer = await gateway.client.post({**CHAT, **other}, {"idempotency-key": "k"})
        check_problem(answer, 422, "idempotency_key_reused")
    assert await gateway.snapshot() == before
