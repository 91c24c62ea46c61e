"""A redriven job has the rights of the original job, never more."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from common.access.record import tenant_tail
from common.jobs.options import JobOptions
from gateway.jobs.ids import new_job_id
from tests.support.gateway.access import call, key_for, post
from tests.support.gateway.dead_letters import NO_JOB, put
from tests.support.gateway.harness import Gateway, Make

pytestmark = pytest.mark.fakeredis_only


@pytest.fixture
async def gateway(make: Make) -> Gateway:
    return make(auth="required")


async def put_dead_letter(gateway: Gateway, job_id: str = "", options: bytes | None = None) -> str:
    """A dead letter with or without the options of its job."""
    job_id = job_id or str(uuid.uuid4())
    message = {"job_id": job_id, "task": "chat", "payload": "{}"}
    fields = {b"reason": NO_JOB.encode(), b"fields": json.dumps(message).encode()}
    fields[b"job_id"] = job_id.encode()
    if options is not None:
        fields[b"options"] = options
    return await put(gateway, fields)


async def rights(gateway: Gateway, dead_letter_id: str) -> tuple[str | None, Any]:
    """Tenant and tools of the redriven job."""
    admin = await key_for(gateway, scopes=frozenset({"admin"}))
    answer = await call(gateway, "POST", f"/v1/dlq/{dead_letter_id}/redrive", admin)
    assert answer.status == 202, answer
    key = gateway.keys.lease(answer.json()["job_id"])
    if await gateway.redis.exists(key):
        assert await gateway.redis.ttl(key) > 0
        assert await gateway.redis.hget(key, "attempt") == b"0"
    options = JobOptions.from_json(await gateway.redis.hget(key, "options") or b"")
    return options.tenant, options.tools


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            JobOptions(5.0, tenant="shop", tools=("clock", "search")).to_json(),
            ("shop", ("clock", "search")),
        ),
        (JobOptions(tenant="shop", tools=()).to_json(), ("shop", ())),
        # Other options of the original job may have caused the failure.
        (JobOptions(timeout_s=0.5).to_json(), (None, None)),
        (b"", (None, None)),
        *((junk, ("?", ())) for junk in (b"{", b"[]", b'{"tenant":7,"tools":"all"}')),
    ],
)
async def test_tenant_and_tools_of_the_dead_letter_are_kept(
    gateway: Gateway, options: bytes, expected: Any
) -> None:
    await key_for(gateway, tools=frozenset({"clock"}))
    assert await rights(gateway, await put_dead_letter(gateway, options=options)) == expected


async def test_the_tenant_is_recognised_by_the_job_id(gateway: Gateway) -> None:
    """The job had expired, so its tenant was not recorded."""
    await key_for(gateway, tenant="shop")
    dead_letter_id = await put_dead_letter(gateway, new_job_id(tenant_tail("shop")))
    assert await rights(gateway, dead_letter_id) == ("shop", None)
    await key_for(gateway, tenant="shop", tools=frozenset({"clock"}))
    dead_letter_id = await put_dead_letter(gateway, new_job_id(tenant_tail("shop")))
    assert await rights(gateway, dead_letter_id) == ("shop", ())


async def test_tools_are_denied_if_a_key_without_tenant_is_limited(gateway: Gateway) -> None:
    assert await rights(gateway, await put_dead_letter(gateway)) == (None, None)
    await key_for(gateway, tenant="shop", tools=frozenset({"clock"}))
    assert await rights(gateway, await put_dead_letter(gateway)) == (None, None)
    await key_for(gateway, tools=frozenset({"clock"}))
    assert await rights(gateway, await put_dead_letter(gateway)) == (None, ())


async def test_the_rights_of_a_tenants_job_are_stored_with_it(gateway: Gateway) -> None:
    key = await key_for(gateway, tenant="shop", tools=frozenset({"search", "clock"}))
    job_id = (await post(gateway, key)).json()["job_id"]
    options = await gateway.redis.hget(gateway.keys.lease(job_id), "options")
    assert options is not None
    found = JobOptions.from_json(options)
    assert (found.tenant, found.tools) == ("shop", ("clock", "search"))
    plain = await key_for(gateway)
    job_id = (await post(gateway, plain)).json()["job_id"]
    assert not await gateway.redis.exists(gateway.keys.lease(job_id))
