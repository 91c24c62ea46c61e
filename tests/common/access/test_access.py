"""API keys: their format, records and store; and the audit log."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from typing import Any

import pytest

from sluice.common.access import store as access
from sluice.common.access.audit_log import AuditEntry, AuditLog
from sluice.common.access.key_format import generate_key, generate_key_id, key_digest, parse_key
from sluice.common.access.record import (
    AccessRecord,
    InvalidKeySpec,
    KeySecret,
    KeySpec,
    is_valid_secret,
    tenant_tail,
)
from sluice.common.access.store import KeyStore, TooManyKeys
from sluice.common.contracts.access import AccessKeys, AuditAction
from sluice.common.contracts.jobs import JobKeys
from sluice.common.errors import CorruptKey, StoreUnavailable
from tests.support.servers import Backend

KEYS = AccessKeys()


@pytest.fixture
def store(backend: Backend, keys: JobKeys) -> KeyStore:
    return KeyStore(backend.client(), AccessKeys(keys.tag))


def test_a_key_contains_its_id_and_a_checksum() -> None:
    key_id = generate_key_id()
    key = generate_key(key_id)
    assert key.startswith(f"sluice_{key_id}_")
    assert len(key) == 65
    assert key.isascii()
    presented = parse_key(key)
    assert presented == (key_id, key_digest(key))
    assert key not in str(presented)
    assert len({generate_key("aaaaaaaa") for _ in range(500)}) == 500
    assert len({generate_key_id() for _ in range(500)}) == 500
    # The checksum detects any single wrong character.
    key = generate_key("k1k2k3k4")
    for at in range(len("sluice_"), len(key)):
        other = "b" if key[at] != "b" else "c"
        assert parse_key(key[:at] + other + key[at + 1 :]) is None, at


def test_invalid_keys_are_not_parsed() -> None:
    key = generate_key("aaaaaaaa")
    after = (key + "\n", key + " ", key + "x")
    short = ("", "sluice_", "x" * 65, "Bearer x", "sluice_aaaaaaaa_" + "0" * 49, "sluice_\udcff")
    for text in (*short, *after):
        assert parse_key(text) is None, text


def record(**changes: object) -> AccessRecord:
    made = AccessRecord.from_spec("aaaaaaaa", KeySpec("a name"), key_digest("x"), 1000)
    return replace(made, **changes)  # type: ignore[arg-type]


FULL = KeySpec(
    name="Käthe's key",
    tenant="shop-7",
    scopes=("admin", "metrics"),
    expires_s=60,
    tasks=("chat", "rag"),
    tools=("calculator", "files.read"),
    rate_per_min=0.5,
    burst=3,
    max_jobs=7,
)


@pytest.mark.parametrize("spec", [KeySpec("x"), FULL], ids=["plain", "full"])
def test_a_record_survives_a_json_round_trip(spec: KeySpec) -> None:
    made = AccessRecord.from_spec("aaaaaaaa", spec, key_digest("x"), 1_760_000_000_000)
    made = replace(made, secrets=(*made.secrets, KeySecret(key_digest("y"), 5)))
    assert AccessRecord.from_json("aaaaaaaa", made.to_json()) == made


STORED = record().to_json()
#: Members of a stored record with values that are invalid for them.
INVALID_MEMBERS = {
    b'"tenant":""': (b'"A b"', b"[]"),
    b'"max_jobs":null': (b"-1", b"1e999"),
    b'"tasks":null': (b'["dance"]', b"7"),
    b'"tools":null': (b"7", b"[7]", b'"*"'),
}


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"null", b"[]", b"7", b"{}", b'{"name":7}', b"\xff"),
        STORED.replace(b"jobs:write", b"x").replace(b"jobs:read", b"y"),
        STORED.replace(key_digest("x").encode(), b"short"),
        *(
            STORED.replace(member, member.partition(b":")[0] + b":" + value)
            for member, values in INVALID_MEMBERS.items()
            for value in values
        ),
    ],
)
def test_an_invalid_stored_record_grants_no_access(raw: bytes) -> None:
    assert raw != STORED
    assert AccessRecord.from_json("aaaaaaaa", raw) is None


def test_unknown_scopes_are_not_granted() -> None:
    raw = record().to_json().replace(b"jobs:write", b"root")
    read = AccessRecord.from_json("aaaaaaaa", raw)
    assert read is not None
    assert read.scopes == {"jobs:read"}


INVALID_OPTIONS: dict[str, tuple[Any, ...]] = {
    "name": ("", "x" * 101, "a\nb"),
    "tenant": ("A", "-a", "a:b", "a" * 64, "a\n"),
    "scopes": ((), ("root",)),
    "tasks": (("dance",),),
    "tools": (("*",), ("",), tuple(f"t{number}" for number in range(101))),
    "burst": (2,),  # without a rate
    "rate_per_min": (0.0, float("nan"), float("inf")),
    "max_jobs": (0, 10**9),
    "expires_s": (-1.0,),
}


@pytest.mark.parametrize(
    "changes",
    [
        {"rate_per_min": 60, "burst": 0},
        *({name: value} for name, values in INVALID_OPTIONS.items() for value in values),
    ],
)
def test_invalid_key_options_are_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidKeySpec):
        KeySpec(**{"name": "x", **changes})  # type: ignore[arg-type]


def test_a_secret_is_valid_until_it_expires() -> None:
    secrets = (KeySecret(key_digest("new")), KeySecret(key_digest("old"), 100))
    assert is_valid_secret(secrets, key_digest("new"), 10**15)
    assert is_valid_secret(secrets, key_digest("old"), 99)
    assert not is_valid_secret(secrets, key_digest("old"), 100)
    assert not is_valid_secret(secrets, key_digest("other"), 0)
    assert not is_valid_secret((), key_digest("new"), 0)
    assert not is_valid_secret((), "0" * 64, 0)


def test_job_ids_of_a_tenant_share_a_suffix() -> None:
    tails = {tenant_tail(tenant) for tenant in ("a", "b", "ab", "a-b")}
    assert len(tails) == 4
    assert {len(tail) for tail in tails} == {12}
    assert tenant_tail("") == ""
    assert tenant_tail("shop") == "3413caa70e29"  # must never change: existing jobs have it


def test_limits() -> None:
    assert record().limits(KEYS) is None
    limits = record(rate_per_min=60.0, max_jobs=3).limits(KEYS)
    assert limits is not None
    assert limits[2:] == (1_000_000, 60, 3)
    assert limits[:2] == ("access:rate:aaaaaaaa", "access:active:aaaaaaaa")
    assert record(rate_per_min=0.5).limits(KEYS)[2:] == (120_000_000, 1, 0)  # type: ignore[index]
    assert record(rate_per_min=60.0, burst=2).limits(KEYS)[3] == 2  # type: ignore[index]
    assert record(max_jobs=3).limits(KEYS)[2:] == (0, 0, 3)  # type: ignore[index]


async def test_a_key_is_created_and_found(store: KeyStore, backend: Backend) -> None:
    made, key = await store.create(FULL)
    assert await store.get(made.key_id) == made
    assert await store.list() == [made]
    assert is_valid_secret(made.secrets, key_digest(key), made.created_ms)
    client = backend.client()
    for name in await client.keys("*"):
        stored = await client.hgetall(name)  # type: ignore[misc]
        assert key not in str(stored)
        assert key.rpartition("_")[2] not in str(stored)
    members = json.loads((await client.hgetall(store.keys.records))[made.key_id.encode()])  # type: ignore[misc]
    assert set(members) == {
        *("name", "tenant", "scopes", "secrets", "created_ms", "expires_ms", "tasks"),
        "tools",
        *("rate_per_min", "burst", "max_jobs"),
    }


async def test_rotation_keeps_the_old_secret_for_a_while(store: KeyStore) -> None:
    made, first = await store.create(KeySpec("x"))
    rotated = await store.rotate(made.key_id, 60)
    assert rotated is not None
    now_ms = int(time.time() * 1000)
    assert is_valid_secret(rotated.record.secrets, key_digest(first), now_ms)
    assert is_valid_secret(rotated.record.secrets, key_digest(rotated.key), now_ms)
    assert not is_valid_secret(rotated.record.secrets, key_digest(first), now_ms + 61_000)
    again = await store.rotate(made.key_id, 60)
    assert again is not None
    assert len(again.record.secrets) == 2
    newest_old = again.record.secrets
    assert not is_valid_secret(newest_old, key_digest(first), now_ms)
    assert replace(again.record, secrets=made.secrets) == made
    at_once = await store.rotate(made.key_id, 0)
    assert at_once is not None
    assert [secret.sha256 for secret in at_once.record.secrets] == [key_digest(at_once.key)]
    assert await store.rotate("zzzzzzzz") is None


async def test_concurrent_rotations_do_not_lose_each_other(store: KeyStore) -> None:
    made, _ = await store.create(KeySpec("x"))
    issued = await asyncio.gather(*(store.rotate(made.key_id) for _ in range(5)))
    final = await store.get(made.key_id)
    assert final is not None
    good = [one for one in issued if one and is_valid_secret(final.secrets, key_digest(one.key), 0)]
    assert len(good) == 2  # the newest, and the one before


async def test_a_revoked_key_leaves_no_data(store: KeyStore, backend: Backend) -> None:
    made, _ = await store.create(KeySpec("x", rate_per_min=1, max_jobs=1))
    client = backend.client()
    await store.record_use(made.key_id, 17)
    assert await store.last_used() == {made.key_id: 17}
    await client.set(store.keys.rate(made.key_id), "1")
    await client.zadd(store.keys.active(made.key_id), {"x": 1})
    assert await store.revoke(made.key_id)
    assert await client.keys("*") == []
    assert not await store.revoke(made.key_id)
    # It can be revoked if its usage is unreadable.
    made, _ = await store.create(KeySpec("x"))
    await client.set(store.keys.last_used, "x")
    assert await store.revoke(made.key_id)
    assert await store.get(made.key_id) is None
    await client.set(store.keys.records, "x")
    with pytest.raises(CorruptKey):
        await store.revoke(made.key_id)


async def test_keys_are_limited_in_number(store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MOST_KEYS", 2)
    for _ in range(2):
        await store.create(KeySpec("x"))
    with pytest.raises(TooManyKeys):
        await store.create(KeySpec("x"))
    assert len(await store.list()) == 2


async def test_invalid_records_grant_no_access(store: KeyStore, backend: Backend) -> None:
    made, _ = await store.create(KeySpec("x"))
    await backend.client().hset(store.keys.records, "bbbbbbbb", "{")  # type: ignore[misc]
    assert await store.list() == [made]
    assert await store.find(["bbbbbbbb", made.key_id, "cccccccc"]) == [None, made, None]
    assert await store.rotate("bbbbbbbb") is None
    # Nor do records of the wrong type.
    await backend.client().delete(store.keys.records)
    await backend.client().set(store.keys.records, "x")
    for attempt in (store.get("aaaaaaaa"), store.list(), store.create(KeySpec("x"))):
        with pytest.raises(CorruptKey):
            await attempt
    with pytest.raises((CorruptKey, StoreUnavailable)):
        await store.revoke("aaaaaaaa")


async def test_without_redis_lookups_fail() -> None:
    store = KeyStore(Backend("none", "unix:///nowhere/redis.sock").client())
    for attempt in (store.get("aaaaaaaa"), store.list(), store.rotate("aaaaaaaa")):
        with pytest.raises(StoreUnavailable):
            await attempt


async def test_audit_entries_are_read_newest_first(
    backend: Backend, keys: JobKeys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trail = AuditLog(backend.client(), AccessKeys(keys.tag))
    rest = ("a name", "r-1", "192.0.2.1")
    for number in range(5):
        await trail.write(AuditEntry("aaaaaaaa", AuditAction.KEY_ROTATE, f"k{number}", *rest))
    page = await trail.page("+", 3)
    assert [entry.target for entry in page] == ["k4", "k3", "k2"]
    rest = await trail.page(page[-1].id, 10)
    assert [entry.target for entry in rest] == ["k1", "k0"]
    assert await trail.page("0-0", 10) == []
    entry = page[0]
    assert (entry.who, entry.name, entry.action) == ("aaaaaaaa", "a name", "key.rotate")
    assert (entry.request_id, entry.remote) == ("r-1", "192.0.2.1")
    assert abs(entry.ts - time.time() * 1000) < 60_000
    assert "aaaaaaaa key.rotate k4" in caplog.text


@pytest.mark.real_redis
async def test_the_audit_log_is_trimmed(
    backend: Backend, keys: JobKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.common.access.audit_log.MAX_ENTRIES", 10)
    client = backend.client()
    trail = AuditLog(client, AccessKeys(keys.tag))
    for _ in range(300):
        await trail.write(AuditEntry("x", AuditAction.AUDIT_RUN, "y" * 1000))
    assert await client.xlen(AccessKeys(keys.tag).audit_log) < 200
    assert {len(entry.target) for entry in await trail.page("+", 10)} == {256}


async def test_a_failed_audit_write_raises(backend: Backend, keys: JobKeys) -> None:
    await backend.client().set(AccessKeys(keys.tag).audit_log, "x")
    trail = AuditLog(backend.client(), AccessKeys(keys.tag))
    with pytest.raises(CorruptKey):
        await trail.write(AuditEntry("x", AuditAction.AUDIT_RUN))
    with pytest.raises(CorruptKey):  # it must not look like an empty audit log
        await trail.page("+", 10)
