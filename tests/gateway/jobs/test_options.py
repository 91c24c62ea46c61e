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


def backoff(**changes: Any) -> bytes:
    return with_options(backoff=changes)


#: Also parsed by FastAPI with the same model; see test_openapi.
INVALID_OPTIONS: dict[str, tuple[bytes, list[str]]] = {
    "timeout 0": (with_options(timeout_s=0), ["/timeout_s"]),
    "timeout negative": (with_options(timeout_s=-1.5), ["/timeout_s"]),
    "timeout too long": (with_options(timeout_s=DAYS_30 + 1), ["/timeout_s"]),
    "timeout true": (with_options(timeout_s=True), ["/timeout_s"]),
    "timeout text": (with_options(timeout_s="5"), ["/timeout_s"]),
    "timeout list": (with_options(timeout_s=[5]), ["/timeout_s"]),
    "timeout huge": (with_options(timeout_s=10**300), ["/timeout_s"]),
    "attempts 0": (with_options(max_attempts=0), ["/max_attempts"]),
    "attempts negative": (with_options(max_attempts=-1), ["/max_attempts"]),
    "attempts too many": (with_options(max_attempts=1001), ["/max_attempts"]),
    "attempts huge": (with_options(max_attempts=10**40), ["/max_attempts"]),
    "attempts float": (with_options(max_attempts=3.0), ["/max_attempts"]),
    "attempts true": (with_options(max_attempts=True), ["/max_attempts"]),
    "attempts text": (with_options(max_attempts="3"), ["/max_attempts"]),
    "backoff number": (with_options(backoff=5), ["/backoff"]),
    "backoff list": (with_options(backoff=[]), ["/backoff"]),
    "backoff text": (with_options(backoff="{}"), ["/backoff"]),
    "backoff with more": (backoff(initial=1), ["/backoff/initial"]),
    "initial negative": (backoff(initial_s=-0.1), ["/backoff/initial_s"]),
    "initial too long": (backoff(initial_s=3600.5), ["/backoff/initial_s"]),
    "initial null": (backoff(initial_s=None), ["/backoff/initial_s"]),
    "factor below 1": (backoff(factor=0.99), ["/backoff/factor"]),
    "factor too big": (backoff(factor=101), ["/backoff/factor"]),
    "factor true": (backoff(factor=True), ["/backoff/factor"]),
    "max negative": (backoff(max_s=-1), ["/backoff/max_s"]),
    "max too long": (backoff(max_s=86401), ["/backoff/max_s"]),
    "jitter negative": (backoff(jitter=-0.5), ["/backoff/jitter"]),
    "jitter above 1": (backoff(jitter=1.01), ["/backoff/jitter"]),
    "jitter text": (backoff(jitter="0.5"), ["/backoff/jitter"]),
    "two faults": (backoff(jitter=2, factor=0), ["/backoff/factor", "/backoff/jitter"]),
    "delay negative": (with_options(delay_s=-1), ["/delay_s"]),
    "delay too long": (with_options(delay_s=DAYS_30 + 0.1), ["/delay_s"]),
    "delay true": (with_options(delay_s=True), ["/delay_s"]),
    "delay text": (with_options(delay_s="5"), ["/delay_s"]),
    "delay huge": (with_options(delay_s=10**300), ["/delay_s"]),
    "run_at number": (with_options(run_at=1760000000), ["/run_at"]),
    "run_at number as text": (with_options(run_at="1760000000"), ["/run_at"]),
    "run_at true": (with_options(run_at=True), ["/run_at"]),
    "run_at empty": (with_options(run_at=""), ["/run_at"]),
    "run_at no offset": (with_options(run_at="2026-01-01T00:00:00"), ["/run_at"]),
    "run_at date only": (with_options(run_at="2026-01-01"), ["/run_at"]),
    "run_at no seconds": (with_options(run_at="2026-01-01T00:00Z"), ["/run_at"]),
    "run_at month 13": (with_options(run_at="2026-13-01T00:00:00Z"), ["/run_at"]),
    "run_at February 30": (with_options(run_at="2026-02-30T00:00:00Z"), ["/run_at"]),
    "run_at offset 24:00": (with_options(run_at="2026-01-01T00:00:00+24:00"), ["/run_at"]),
    "run_at year 0": (with_options(run_at="0000-01-01T00:00:00Z"), ["/run_at"]),
    "run_at blank around": (with_options(run_at=" 2026-01-01T00:00:00Z"), ["/run_at"]),
    "run_at line break": (with_options(run_at="2026-01-01T00:00:00Z\n"), ["/run_at"]),
    "run_at other digits": (with_options(run_at="٢٠٢٦-01-01T00:00:00Z"), ["/run_at"]),
    "run_at far ahead": (with_options(run_at="2999-01-01T00:00:00Z"), ["/run_at"]),
    "run_at end of time": (with_options(run_at="9999-12-31T23:59:59-23:59"), ["/run_at"]),
    "delay and run_at": (with_options(delay_s=5, run_at="2026-01-01T00:00:00Z"), ["/run_at"]),
    "delay 0 and run_at": (with_options(delay_s=0, run_at="2026-01-01T00:00:00Z"), ["/run_at"]),
    "bad delay and run_at": (with_options(delay_s=-5, run_at="2026-01-01T00:00:00Z"), ["/delay_s"]),
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
