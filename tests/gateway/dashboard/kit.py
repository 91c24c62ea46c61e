"""A browser, as far as the gateway can tell."""

from __future__ import annotations

import json
from http.cookies import SimpleCookie
from typing import Any

from tests.gateway.access_kit import JSON
from tests.gateway.asgi import Answer, Client
from tests.gateway.conftest import Gateway

SESSION = "/ui/session"
#: What a page of the dashboard sends with everything that changes something.
PAGE = {
    "x-sluice-ui": "1",
    "sec-fetch-site": "same-origin",
    "origin": "http://localhost:8080",
}


class Browser:
    """Keeps its cookie, and sends what the dashboard's pages send."""

    def __init__(self, gateway: Gateway, client: Client | None = None) -> None:
        self._client = client or gateway.client
        self.cookie = ""

    async def send(
        self, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None
    ) -> Answer:
        """As a page does; `headers` in place of a page's own."""
        chosen = dict(PAGE if headers is None else headers)
        if self.cookie:
            chosen["cookie"] = f"other=1; sluice_session={self.cookie}; more=2"
        raw = b"" if body is None else json.dumps(body).encode()
        if raw:
            chosen |= JSON
        answer = await self._client.send(method, path, chosen, raw)
        given = answer.header("set-cookie")
        if given is not None:
            self.cookie = SimpleCookie(given)["sluice_session"].value
        return answer

    async def get(self, path: str) -> Answer:
        return await self.send("GET", path, headers={"sec-fetch-site": "same-origin"})

    async def sign_in(self, key: str, **wishes: Any) -> Answer:
        return await self.send("POST", SESSION, {"key": key, **wishes})

    async def me(self) -> Any:
        answer = await self.get(SESSION)
        assert answer.status == 200
        return answer.json()
