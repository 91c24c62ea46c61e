"""API keys for tests of the gateway, and connections from other machines."""

from __future__ import annotations

from typing import Any

from sluice.common.access.record import KeySpec
from tests.support.gateway.asgi import Answer, Client
from tests.support.gateway.harness import CHAT, Gateway


async def key_for(gateway: Gateway, name: str = "test", **spec: Any) -> str:
    """A new key's text."""
    return (await gateway.state.access.keys.create(KeySpec(name, **spec))).key


def id_of(key: str) -> str:
    return key.split("_")[1]


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **more}


async def post(gateway: Gateway, key: str, body: object = CHAT, **headers: str) -> Answer:
    """`POST /v1/jobs` with a key."""
    return await gateway.client.post(body, bearer(key, **headers))


async def call(
    gateway: Gateway, method: str, path: str, key: str | None = None, body: object = None
) -> Answer:
    """Any request, with a key or without."""
    return await gateway.client.send(method, path, {} if key is None else bearer(key), body)


def client_at(gateway: Gateway, server: Any = ("192.0.2.9", 8080)) -> Client:
    """A client of the same app, with connections to another address of this machine."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await gateway.app({**scope, "server": server}, receive, send)

    return Client(app)
