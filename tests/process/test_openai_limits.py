"""The official `openai` package with required keys and low limits."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from common.access.record import KeySpec
from common.access.store import KeyStore
from common.redis.connection import async_client
from tests.process.openai_rig import MODEL, OpenAIRig, running_rig
from tests.worker.processes import wait_until

pytestmark = pytest.mark.process

BACKLOG = 3


class Keys:
    """Creates keys at a gateway that requires them."""

    def __init__(self, rig: OpenAIRig) -> None:
        async def first() -> str:
            client = async_client(rig.redis.url, connections=1)
            try:
                spec = KeySpec("root", scopes=frozenset({"admin"}))
                return (await KeyStore(client).create(spec)).key
            finally:
                await client.aclose()

        self._rig = rig
        self.admin = asyncio.run(first())

    def make(self, tenant: str = "shop", **spec: Any) -> str:
        answer = self.call("/v1/keys", self.admin, {"name": "test", "tenant": tenant, **spec})
        return str(answer["key"])

    def call(self, path: str, key: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        raw = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._rig.origin}{path}", raw, headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def client(self, retries: int = 0, **spec: Any) -> OpenAI:
        key = self.make(**spec)
        return OpenAI(base_url=self._rig.url, api_key=key, timeout=30, max_retries=retries)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIRig]:
    directory = tmp_path_factory.mktemp("openai")
    few = {"AUTH": "required", "BACKPRESSURE_MAX_BACKLOG": str(BACKLOG)}
    with running_rig(directory, **few) as made:
        yield made


@pytest.fixture(scope="module")
def keys(rig: OpenAIRig) -> Keys:
    return Keys(rig)


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_wrong_keys(rig: OpenAIRig) -> None:
    for key in ("none", "sluice_wrong"):
        with OpenAI(base_url=rig.url, api_key=key, max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as error:
                client.chat.completions.create(model=MODEL, messages=user("hi"))
            assert error.value.code == "invalid_api_key"
            with pytest.raises(openai.AuthenticationError):
                client.models.list()


def test_keys_without_the_scope(keys: Keys) -> None:
    with keys.client(scopes=["jobs:write"]) as client:
        with pytest.raises(openai.PermissionDeniedError) as error:
            client.chat.completions.create(model=MODEL, messages=user("hi"))
        assert error.value.code == "insufficient_scope"
        assert [model.id for model in client.models.list()] == [MODEL]
    with keys.client(tasks=["embed"]) as client:
        with pytest.raises(openai.PermissionDeniedError):
            client.chat.completions.create(model=MODEL, messages=user("hi"))
        assert client.embeddings.create(model=MODEL, input="hi").data


def test_tenants(keys: Keys) -> None:
    mine, other = keys.make("shop"), keys.make("bakery")
    with OpenAI(base_url=keys._rig.url, api_key=mine, timeout=30) as client:
        answer = client.chat.completions.create(model=MODEL, messages=user("hi"))
    path = f"/v1/jobs/{answer.id.removeprefix('chatcmpl-')}"
    assert keys.call(path, mine)["status"] == "done"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        keys.call(path, other)


def test_the_sdk_waits_for_the_rate_limit(keys: Keys) -> None:
    """The SDK retries after the given time and succeeds."""
    with keys.client(rate_per_min=6, burst=1) as client:
        client.chat.completions.create(model=MODEL, messages=user("hi"))
        with pytest.raises(openai.RateLimitError) as error:
            client.chat.completions.create(model=MODEL, messages=user("hi"))
        assert error.value.code == "rate_limit_exceeded"
        assert int(error.value.response.headers["retry-after-ms"]) <= 10_000
        patient = client.with_options(max_retries=5)
        started = time.monotonic()
        patient.chat.completions.create(model=MODEL, messages=user("hi"))
        assert time.monotonic() - started < 60


def test_the_sdk_waits_for_a_full_queue(rig: OpenAIRig, keys: Keys) -> None:
    """There is capacity after one of the earlier jobs has ended."""
    stop = threading.Event()

    def keep_busy() -> None:
        with keys.client() as client:
            for _ in client.chat.completions.create(
                model=MODEL, messages=user("count to 5000 slowly"), stream=True
            ):
                if stop.is_set():
                    return

    before = len(rig.jobs())
    others = [threading.Thread(target=keep_busy) for _ in range(BACKLOG)]
    for other in others:
        other.start()
    try:
        wait_until(lambda: len(rig.jobs()) == before + BACKLOG)
        with keys.client() as client:
            with pytest.raises(openai.RateLimitError) as error:
                client.chat.completions.create(model=MODEL, messages=user("hi"))
            assert error.value.code == "queue_full"
            assert int(error.value.response.headers["retry-after"]) >= 1
            stop.set()
            patient = client.with_options(max_retries=20)
            answer = patient.chat.completions.create(
                model=MODEL, messages=user("say exactly: at last")
            )
            assert answer.choices[0].message.content == "at last"
    finally:
        stop.set()
        for other in others:
            other.join(20)


def test_redis_is_unavailable(rig: OpenAIRig, keys: Keys) -> None:
    """Must be the last test: Redis is gone afterwards."""
    with keys.client() as client:
        client.models.list()
        rig.redis.close()
        with pytest.raises(openai.InternalServerError) as error:
            client.chat.completions.create(model=MODEL, messages=user("hi"))
        assert (error.value.status_code, error.value.code) == (503, "store_unavailable")
        assert error.value.response.headers["retry-after"]
