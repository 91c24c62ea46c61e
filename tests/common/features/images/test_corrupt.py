"""Corrupt keys and a lack of memory: operations fail before they write anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from common.contracts.images import Stage
from common.contracts.jobs import JobKeys
from common.errors import CorruptKey, StoreUnavailable
from common.features.images.types import ImageOutcome, ProcessingAttempt
from common.redis.batching import ScriptBatcher
from tests.common.features.images.kit import (
    ADMISSION,
    GROUP,
    HOLD_MS,
    OK,
    Gallery,
    fresh_upload,
    new_image,
    result_fields,
    uploaded,
)
from tests.support.backends import Backend

Call = Callable[[Gallery, ProcessingAttempt], Awaitable[Any]]


async def persist(gallery: Gallery, held: ProcessingAttempt) -> ImageOutcome:
    return await gallery.store.persist("9999999999999-0", result_fields(held.image_id), GROUP)


#: Operations on an image in processing, on one being uploaded, and on a failed one.
WORKING: dict[str, Call] = {
    "advance": lambda gallery, held: gallery.store.advance(held, Stage.DECODING),
    "succeed": lambda gallery, held: gallery.succeed(held),
    "fail": lambda gallery, held: gallery.fail(held),
    "repair": lambda gallery, held: gallery.store.repair(
        held.image_id, held.upload_id, result_fields(held.image_id)
    ),
    "persist": persist,
    "delete": lambda gallery, held: gallery.store.delete(held.image_id),
}
UPLOADING: dict[str, Call] = {
    "claim": lambda gallery, held: gallery.store.claim(held.image_id, held.upload_id, HOLD_MS),
    "hold": lambda gallery, held: gallery.store.extend_claim(
        held.image_id, held.upload_id, HOLD_MS
    ),
    "release": lambda gallery, held: gallery.store.release(held.image_id, held.upload_id),
    "submit": lambda gallery, held: gallery.store.submit(
        uploaded(held.image_id, held.upload_id), ADMISSION
    ),
}
FAILED: dict[str, Call] = {"reopen": lambda gallery, held: gallery.store.reopen(held.image_id)}
CALLS = {**WORKING, **UPLOADING, **FAILED}


async def ready_for(gallery: Gallery, call: str) -> ProcessingAttempt:
    """An image in the state that the call needs."""
    if call in UPLOADING:
        image_id = await gallery.create(tenant="acme")
        return ProcessingAttempt(image_id, await gallery.claim(image_id))
    if call in FAILED:
        return await gallery.failed(tenant="acme")
    return await gallery.processing(tenant="acme")


def keys_of(gallery: Gallery, image_id: str, call: str) -> list[str]:
    keys = gallery.keys
    names = [keys.record(image_id), keys.status(image_id), keys.upload(image_id)]
    names += [keys.inflight, keys.results]
    if call == "delete":
        names += [keys.index(), keys.index("acme"), keys.deleted(image_id)]
    if call == "submit":
        names.append(gallery.jobs.queue)
    return names


@pytest.mark.parametrize("call", CALLS)
async def test_a_key_of_the_wrong_type_fails_before_any_write(gallery: Gallery, call: str) -> None:
    held = await ready_for(gallery, call)
    assert await gallery.client.exists(gallery.keys.record(held.image_id))
    for name in keys_of(gallery, held.image_id, call):
        was = await gallery.client.dump(name)
        await gallery.client.delete(name)
        await gallery.client.sadd(name, "something else")
        before = await gallery.snapshot()
        with pytest.raises(CorruptKey):
            await CALLS[call](gallery, held)
        assert await gallery.snapshot() == before, name
        await gallery.client.delete(name)
        if was is not None:
            await gallery.client.restore(name, 0, was)
    assert (await CALLS[call](gallery, held)).answer is OK


@pytest.mark.parametrize("name", ["record", "status", "upload", "index", "own", "once", "results"])
async def test_create_fails_if_a_key_has_the_wrong_type(gallery: Gallery, name: str) -> None:
    once = {"idempotency_key": "{0}:idempotency.img:k", "fingerprint": "p", "idempotency_ttl_s": 60}
    new = new_image(tenant="acme", **once)
    keys = gallery.keys
    where = {
        "record": keys.record(new.image_id),
        "status": keys.status(new.image_id),
        "upload": keys.upload(new.image_id),
        "index": keys.index(),
        "own": keys.index("acme"),
        "once": new.idempotency_key,
        "results": keys.results,
    }[name]
    await gallery.client.sadd(where, "something else")
    before = await gallery.snapshot()
    with pytest.raises(CorruptKey):
        await gallery.store.create(new)
    assert await gallery.snapshot() == before
    await gallery.client.delete(where)
    assert (await gallery.store.create(new)).answer is OK


async def test_no_dead_letter_is_written_if_a_key_has_the_wrong_type(gallery: Gallery) -> None:
    entry_id = await gallery.third_party_entry({"x": "y"})
    await gallery.client.sadd(gallery.keys.dead_results, "something else")
    with pytest.raises(CorruptKey):
        await gallery.store.dead_letter_result(entry_id, {"x": "y"}, "odd", 1, GROUP)
    assert await gallery.pending() == 1


async def test_a_lease_of_the_wrong_type_stops_the_worker(gallery: Gallery) -> None:
    held = await gallery.processing()
    assert held.fence is not None
    await gallery.client.delete(held.fence.lease_key)
    await gallery.client.sadd(held.fence.lease_key, "x")
    before = await gallery.snapshot()
    with pytest.raises(CorruptKey):
        await gallery.succeed(held)
    assert await gallery.snapshot() == before


@pytest.mark.parametrize("ttl_s", ["", "0", "-1", "x", "99999999999", "1e9"])
async def test_an_invalid_ttl_is_replaced_by_a_default(gallery: Gallery, ttl_s: str) -> None:
    held = await gallery.processing()
    await gallery.client.hset(gallery.keys.record(held.image_id), "ttl_s", ttl_s)
    assert (await gallery.succeed(held)).answer is OK
    ttl = await gallery.client.ttl(gallery.keys.record(held.image_id))
    assert 30 * 86_400 - 60 < ttl <= 30 * 86_400


async def test_an_invalid_outcome_fails_the_operation_that_reads_it(gallery: Gallery) -> None:
    held = await gallery.failed()
    await gallery.client.hset(gallery.keys.record(held.image_id), "outcome", "{")
    before = await gallery.snapshot()
    with pytest.raises(CorruptKey):
        await gallery.fail(held)
    assert await gallery.snapshot() == before


async def test_an_invalid_progress_is_overwritten(gallery: Gallery) -> None:
    held = await gallery.processing()
    await gallery.client.hset(gallery.keys.status(held.image_id), "progress", "much")
    assert (await gallery.store.advance(held, Stage.DECODING)).answer is OK
    assert await gallery.stage(held.image_id) == ("decoding", "30")


# -- memory ------------------------------------------------------------------------------------


class Impatient(ScriptBatcher):
    """A batcher with a short retry time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "retry_for_s": 0.3})


@pytest.fixture
async def impatient(real_backend: Backend, keys: JobKeys) -> AsyncIterator[Gallery]:
    """Fails soon, on real servers only; their memory limit is removed at the end."""
    gallery = Gallery(real_backend, keys, Impatient)
    yield gallery
    await gallery.client.config_set("maxmemory", "0")
    await gallery.close()


@pytest.mark.parametrize("call", [*WORKING, "hold", "release"])
async def test_without_memory_running_work_continues_and_ends(
    impatient: Gallery, call: str
) -> None:
    held = await ready_for(impatient, call)
    await impatient.client.config_set("maxmemory", "1")
    assert (await CALLS[call](impatient, held)).answer is OK


async def test_without_memory_a_result_is_dead_lettered(impatient: Gallery) -> None:
    entry_id = await impatient.third_party_entry({"x": "y"})
    await impatient.client.config_set("maxmemory", "1")
    await impatient.store.dead_letter_result(entry_id, {"x": "y"}, "odd", 1, GROUP)
    assert await impatient.client.xlen(impatient.keys.dead_results) == 1


@pytest.mark.parametrize("call", ["create", "claim", "submit", "reopen"])
async def test_without_memory_no_new_work_starts(impatient: Gallery, call: str) -> None:
    gallery = impatient
    begin: Call = CALLS.get(call) or (lambda gallery, _: gallery.store.create(new_image()))
    held = await ready_for(gallery, call)
    if call == "claim":
        held = ProcessingAttempt(await gallery.create(), fresh_upload())
    before = await gallery.snapshot()
    await gallery.client.config_set("maxmemory", "1")
    with pytest.raises(StoreUnavailable):
        await begin(gallery, held)
    await gallery.client.config_set("maxmemory", "0")
    assert await gallery.snapshot() == before
    assert (await begin(gallery, held)).answer is OK
