"""Documents from upload to answer, with a real gateway and worker."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.gateway.processes import PYTHON_M, GatewayProcess
from tests.support.backends import BUNDLED, RealServer, require_binary
from tests.worker.processes import Process

ROOT = Path(__file__).parents[2]
HOURS = (
    "# Opening hours\n\nThe office opens at nine.\n\n## Weekends\n\nOn Sundays it stays closed.\n"
)
PAGE = (
    "<html><title>Menu</title><body><p>Today there is pea soup.</p><script>x</script></body></html>"
)


@pytest.fixture
def redis_server() -> Iterator[RealServer]:
    server = RealServer(require_binary(BUNDLED))
    yield server
    server.close()


@pytest.fixture
def url(redis_server: RealServer, spawn: Callable[..., Process], tmp_path: Path) -> Iterator[str]:
    gateway = GatewayProcess(
        PYTHON_M, tmp_path / "gateway.log", REDIS_URL=redis_server.url, PORT="0"
    )
    spawn("worker", REDIS_URL=redis_server.url, BLOCK_MS=50, EMBEDDER="off")
    yield f"http://127.0.0.1:{gateway.wait_until_listening().port}/v1/rag"
    gateway.close()


def ask(
    method: str, url: str, body: bytes | None = None, content_type: str = ""
) -> tuple[int, Any]:
    headers = {"Prefer": "wait=20", **({"Content-Type": content_type} if content_type else {})}
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            raw, status = answer.read(), answer.status
    except urllib.error.HTTPError as error:
        raw, status = error.read(), error.code
    try:
        return status, json.loads(raw)
    except ValueError:
        return status, raw.decode()


def test_documents_from_upload_to_answer(url: str, redis_server: RealServer) -> None:
    documents = f"{url}/default/documents"
    status, created = ask("POST", f"{documents}?id=hours.md", HOURS.encode(), "text/markdown")
    assert (status, created["document_id"], created["replaced"]) == (201, "hours.md", False), (
        created
    )
    as_json = {"id": "menu", "text": PAGE, "media_type": "text/html"}
    status, created = ask("POST", documents, json.dumps(as_json).encode(), "application/json")
    assert status == 201, created
    assert redis_server.client.keys("rag.upload:*") == []

    status, found = ask("GET", f"{url}/default/search?q={quote('closed on sunday?')}&answer=true")
    assert (status, found["mode"]) == (200, "lexical"), found
    assert found["text"]
    assert found["citations"]
    for passage in (*found["hits"], *found["citations"]):
        span = f"start={passage['start']}&end={passage['end']}"
        quoted = ask("GET", f"{documents}/{passage['document_id']}/text?{span}")
        assert quoted == (200, passage["quote"])
    assert found["hits"][0]["document_id"] == "hours.md"
    assert "Sundays" in found["citations"][0]["quote"]

    status, found = ask("GET", f"{url}/default/search?q=soup")
    assert [hit["document_id"] for hit in found["hits"]] == ["menu"]
    assert ask("DELETE", f"{documents}/menu") == (204, "")
    assert ask("GET", f"{url}/default/search?q=soup")[1]["hits"] == []
    assert ask("DELETE", f"{documents}/menu")[0] == 404
    listed = ask("GET", documents)[1]
    assert [item["id"] for item in listed["items"]] == ["hours.md"]


def test_invalid_documents(url: str, redis_server: RealServer) -> None:
    documents = f"{url}/default/documents"
    status, problem = ask("POST", documents, b"%PDF-1.7 nothing of the kind", "application/pdf")
    assert (status, problem["code"]) == (422, "document_refused"), problem
    status, problem = ask("POST", documents, b"\x00\x01\x02", "text/plain")
    assert (status, problem["code"]) == (422, "document_refused"), problem
    assert redis_server.client.keys("rag*") == []


def test_the_pages_of_the_documentation(url: str) -> None:
    for path in sorted((ROOT / "docs").glob("*.md")):
        status, created = ask(
            "POST", f"{url}/handbook/documents?id={path.name}", path.read_bytes(), "text/markdown"
        )
        assert status == 201, created
    status, found = ask("GET", f"{url}/handbook/search?q={quote('which exit code is a bad key?')}")
    assert status == 200
    assert len(found["hits"]) == 5
