"""The page at /docs: complete, escaped, and without external resources."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from html.parser import HTMLParser
from typing import Any

import pytest

from gateway.http.openapi.docs_page import curl, render
from tests.gateway.http.test_headers import check_strict
from tests.support.gateway.harness import Gateway, check_problem

pytestmark = pytest.mark.fakeredis_only

#: Tags that need no end.
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Fails on a page whose tags do not match; collects what is in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


@pytest.fixture(scope="session")
def html(document: dict[str, Any]) -> str:
    return render(document)


def test_the_page_loads_no_external_resources(html: str) -> None:
    page = Page(html)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    for name, value in page.attributes:
        assert not name.startswith("on"), "inline scripts are not allowed"
        assert name != "style", "the policy forbids inline styles"
        assert name not in ("src", "href") or value.startswith("/")
    addresses = set(re.findall(r"[a-z]+://[^/\s\"'<]+", html))
    assert addresses <= {"http://localhost:8080", "https://app.example.com"}
    assert "@import" not in html
    assert "url(" not in html


async def test_page_and_document_are_served(
    gateway: Gateway, html: str, document: dict[str, Any]
) -> None:
    answer = await gateway.client.get("/openapi.json")
    assert (answer.status, answer.json()) == (200, document)
    answer = await gateway.client.get("/docs")
    assert (answer.status, answer.body.decode()) == (200, html)
    assert answer.header("content-type") == "text/html; charset=utf-8"
    check_strict(answer, None)
    assert answer.header("cross-origin-opener-policy") == "same-origin"
    assert answer.header("permissions-policy")
    [style] = re.findall("<style>(.*?)</style>", html, re.DOTALL)
    assert "prefers-color-scheme:dark" in style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = answer.header("content-security-policy") or ""
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    for target in ("/redoc", "/docs/oauth2-redirect"):  # pages that need a CDN
        check_problem(await gateway.client.get(target), 404)
    assert (await gateway.client.send("HEAD", "/docs")).status in (200, 405)


def test_every_operation_is_on_the_page(document: dict[str, Any], html: str) -> None:
    page = Page(html)
    for path, item in document["paths"].items():
        assert path in page.texts
        for method, operation in item.items():
            assert method.upper() in page.texts
            assert operation["summary"] in page.text
            for parameter in operation.get("parameters", []):
                assert parameter["name"] in page.texts
    for field in ("task", "payload", "ttl_s", "backoff", "reason", "rate_per_s"):
        assert field in page.texts
    assert "chat | plan | code | tool | rag | embed, required" in page.texts
    assert "curl -N" in page.text


def test_the_examples_are_valid_commands(document: dict[str, Any]) -> None:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            command = curl(method, path, operation)
            assert "{" not in command.partition(" -d ")[0], command
            assert shlex.split(command)[0] == "curl"


def test_texts_of_the_document_are_escaped() -> None:
    evil = "</code><script>alert('1')</script>`x`\"&"
    document: dict[str, Any] = {
        "info": {"title": evil, "version": evil, "description": evil},
        "paths": {
            f"/{evil}": {
                "post": {
                    "tags": [evil],
                    "summary": evil,
                    "description": evil,
                    "parameters": [
                        {
                            "name": evil,
                            "in": "path",
                            "description": evil,
                            "schema": {"enum": [evil]},
                        }
                    ],
                    "requestBody": {
                        "content": {
                            "application/json": {
                                "schema": {"properties": {evil: {"description": evil}}},
                                "example": {evil: evil},
                            }
                        }
                    },
                    "responses": {"200": {"description": evil, "content": {evil: {}}}},
                }
            }
        },
    }
    page = Page(render(document))
    assert "script" not in page.tags
    assert "alert('1')" in page.text
