"""A client that behaves like a browser with a dashboard page."""

from __future__ import annotations

from http.cookies import SimpleCookie
from typing import Any

from tests.support.gateway.asgi import Answer, Client
from tests.support.gateway.harness import Gateway

SESSION = "/ui/session"
#: Headers that a dashboard page sends with every request that changes something.
PAGE = {"x-sluice-ui": "1", "sec-fetch-site": "same-origin", "origin": "http://localhost:8080"}


class Browser:
    """Stores its cookie, and sends the headers of dashboard pages."""

    def __init__(self, gateway: Gateway, client: Client | None = None) -> None:
        self._client = client or gateway.client
        self.cookie = ""

    async def send(
        self, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None
    ) -> Answer:
        """Send a request; `headers` replaces the headers of a page."""
        sent = dict(PAGE if headers is None else headers)
        if self.cookie:
            sent["cookie"] = f"other=1; sluice_session={self.cookie}; more=2"
        answer = await self._client.send(method, path, sent, body)
        set_cookie = answer.header("set-cookie")
        if set_cookie is not None:
            self.cookie = SimpleCookie(set_cookie)["sluice_session"].value
        return answer

    async def get(self, path: str) -> Answer:
        return await self.send("GET", path, headers={"sec-fetch-site": "same-origin"})

    async def sign_in(self, key: str, **options: Any) -> Answer:
        return await self.send("POST", SESSION, {"key": key, **options})

    async def me(self) -> Any:
        answer = await self.get(SESSION)
        assert answer.status == 200
        return answer.json()
