"""Client and command line without the packages and modules of gateway, worker and `ops`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client.scripted_gateway import ScriptedGateway, answer
from tests.support.processes.gateway import environment

#: Only the standard library, the client and these packages can be imported.
PRELUDE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        own = name.split(".")[:2]
        server = len(own) == 2 and own[1] in ("common", "gateway", "worker", "ops")
        if (first == "sluice" and not server) or first in {allowed!r}:
            return None
        if first != "sluice" and first in sys.stdlib_module_names:
            return None
        raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
for name in ("fastapi", "redis", "starlette", "uvicorn", "pydantic", "orjson", "sluice.common"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{{name}} can be imported")
import sluice, sluice.cli
"""
#: httpx2, which `AsyncSluice` uses, and the packages that httpx2 requires.
HTTPX2 = ("anyio", "h11", "httpcore2", "httpx2", "idna", "truststore", "typing_extensions")
if sys.version_info < (3, 11):
    HTTPX2 += ("exceptiongroup",)


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    gateway = ScriptedGateway()
    gateway.respond(answer(202, {"job_id": "j1", "status": "queued"}))
    yield gateway
    gateway.close()


def run(
    code: str, allowed: tuple[str, ...], directory: Path, url: str
) -> subprocess.CompletedProcess[str]:
    """Runs the code where only these packages can be imported."""
    return subprocess.run(
        [sys.executable, "-c", PRELUDE.format(allowed=allowed) + code],
        cwd=directory,
        env=environment(SLUICE_URL=url),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("print(sluice.Sluice().submit('chat', {'text': 'hello'}).id)", ()),
        ("sys.exit(sluice.cli.run(['submit', 'chat', 'hello']))", ()),
        (
            "import asyncio\n"
            "async def submit():\n"
            "    async with sluice.AsyncSluice() as client:\n"
            "        print((await client.submit('chat', {'text': 'hello'})).id)\n"
            "asyncio.run(submit())",
            HTTPX2,
        ),
    ],
    ids=["sync", "command", "async"],
)
def test_the_client_submits_without_the_server_s_packages(
    code: str, allowed: tuple[str, ...], tmp_path: Path, gateway: ScriptedGateway
) -> None:
    done = run(code, allowed, tmp_path, gateway.url)
    assert (done.returncode, done.stdout) == (0, "j1\n"), done.stderr
    [request] = gateway.requests
    assert request.json["payload"] == {"text": "hello"}
