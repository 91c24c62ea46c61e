"""A page of another origin watches a job with `EventSource` and a read token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.support.live_server import LiveServer, run_server

#: Follows a stream to its end; returns the types of its events, or what the browser reports.
_WATCH = """
(url) => new Promise((resolve) => {
  const source = new EventSource(url), seen = [];
  for (const type of ["hello", "queued", "running", "done"])
    source.addEventListener(type, () => {
      seen.push(type);
      if (type === "done") { source.close(); resolve(seen); }
    });
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) resolve(["refused"]);
  };
})
"""


class _Page(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Not logged."""


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """The origin of a web application: a server with an empty page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as application:
        serving = threading.Thread(target=application.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{application.server_port}"
        application.shutdown()
        serving.join()


@pytest.fixture(scope="module")
def server(
    browser: Browser, origin: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    directory = tmp_path_factory.mktemp("server")
    with run_server(directory, AUTH="required", ALLOWED_ORIGINS=origin) as server:
        yield server


@pytest.fixture(scope="module")
def key(server: LiveServer) -> str:
    return server.create_key("--name", "page", "--tenant", "shop")


def test_event_source_reads_a_stream_with_a_token(
    browser: Browser, server: LiveServer, origin: str, key: str
) -> None:
    job_id = server.submit("chat", {"text": "hello"}, key=key)
    other = server.submit("chat", {"text": "hello"}, key=key)
    status, created = server.ask("POST", "/v1/tokens", {"job_id": job_id}, key)
    assert status == 201, created
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{origin}/")

        def watch(job: str, token: str) -> Any:
            return page.evaluate(_WATCH, f"{server.url}/v1/jobs/{job}/events?token={token}")

        assert watch(job_id, created["token"]) == ["hello", "queued", "running", "done"]
        assert watch(other, created["token"]) == ["refused"]
        assert watch(job_id, "") == ["refused"]
        # `URLSearchParams` escapes the tilde.
        read = "async (url) => (await fetch(url)).status"
        query = page.evaluate("(token) => `${new URLSearchParams({token})}`", created["token"])
        assert "%7E" in query
        assert page.evaluate(read, f"{server.url}/v1/jobs/{job_id}?{query}") == 200
