"""Clients generated for TypeScript, Go and Python call a real gateway.

Each submits a job, reads its end and reads a problem. The generated code is compiled or
type-checked as a whole, so that an operation that a generator cannot express fails the test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop import install
from tests.support.processes.gateway import PYTHON_M, ROOT, GatewayProcess
from tests.support.processes.worker import Process
from tests.support.servers import BUNDLED, RealServer, missing, require_binary

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("generates and compiles clients of all operations"),
    pytest.mark.xdist_group("generated-clients"),
]

HERE = Path(__file__).parent
GENERATORS = ROOT / ".clients-venv" / "bin"
#: Go libraries of Debian's packages.
GO_LIBRARIES = Path("/usr/share/gocode")
VALIDATOR = "gopkg.in/validator.v2"
#: Compiling takes a minute on a busy machine.
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway and an echo worker on one Redis."""
    directory = tmp_path_factory.mktemp("clients")
    server = RealServer(require_binary(BUNDLED))
    worker = Process("worker.echo_worker", directory / "worker.log", redis_url=server.url)
    gateway = GatewayProcess(PYTHON_M, directory / "gateway.log", REDIS_URL=server.url, PORT="0")
    gateway.wait_until_listening()
    yield gateway
    gateway.close()
    worker.kill()
    worker.wait()
    server.close()


@pytest.fixture
def document(gateway: GatewayProcess, tmp_path: Path) -> Path:
    """The OpenAPI document as the gateway serves it."""
    path = tmp_path / "openapi.json"
    path.write_bytes(gateway.http.get("/openapi.json").content)
    return path


def run(*command: object, cwd: Path, **environment: str) -> str:
    """Run a command that must succeed; returns its output."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, **environment},
        capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def require_generator(name: str) -> Path:
    if not (GENERATORS / name).exists():
        missing(f"{name} is not installed; run `make client-generators`")
    return GENERATORS / name


def check_calls(output: str, gateway: GatewayProcess) -> None:
    """`output`: what a client printed about its three calls."""
    printed: dict[str, Any] = json.loads(output)
    assert (printed["status"], printed["code"]) == ("done", "job_not_found")
    job = gateway.http.get(f"/v1/jobs/{printed['job_id']}").json()
    assert job["payload"] == {"text": "hello"}


def test_typescript_client(gateway: GatewayProcess, document: Path, tmp_path: Path) -> None:
    try:
        modules = install.ensure(HERE)
    except install.NotInstalled as error:
        missing(str(error))
        return
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for name in ("call.ts", "tsconfig.json"):
        shutil.copy(HERE / name, tmp_path)
    tools = modules / ".bin"
    run("node", tools / "openapi-typescript", document, "-o", "schema.d.ts", cwd=tmp_path)
    run("node", tools / "tsc", "--noEmit", cwd=tmp_path)
    run("node", tools / "tsc", cwd=tmp_path)
    check_calls(run("node", "call.js", gateway.url, cwd=tmp_path), gateway)


def test_go_client(gateway: GatewayProcess, document: Path, tmp_path: Path) -> None:
    generator = require_generator("openapi-generator-cli")
    if shutil.which("go") is None:
        missing("go is not installed")
    if not (GO_LIBRARIES / "src" / VALIDATOR).is_dir():
        missing(f"{VALIDATOR} is not installed (Debian: golang-gopkg-validator.v2-dev)")
    options = (
        *("packageName=sluice", "withGoMod=false", "enumClassPrefix=true"),
        "disallowAdditionalPropertiesIfNotPresent=false",
    )
    run(
        *(generator, "generate", "-g", "go", "-i", document, "-o", "src/sluice"),
        *("--additional-properties", ",".join(options)),
        cwd=tmp_path,
    )
    (tmp_path / "src" / "call").mkdir()
    shutil.copy(HERE / "call.go", tmp_path / "src" / "call" / "main.go")
    go = {
        "GO111MODULE": "off",
        "GOPATH": f"{tmp_path}:{GO_LIBRARIES}",
        "GOCACHE": str(tmp_path / "cache"),
        "GOFLAGS": "",
    }
    run("go", "build", "-o", "client", "call", cwd=tmp_path, **go)
    check_calls(run(tmp_path / "client", gateway.url, cwd=tmp_path), gateway)


def test_python_client(gateway: GatewayProcess, document: Path, tmp_path: Path) -> None:
    generator = require_generator("openapi-python-client")
    path = f"{GENERATORS}{os.pathsep}{os.environ['PATH']}"  # it runs ruff
    run(
        *(generator, "generate", "--path", document, "--output-path", "generated"),
        *("--meta", "none"),
        cwd=tmp_path,
        PATH=path,
    )
    shutil.copy(HERE / "call.py", tmp_path)
    python = GENERATORS / "python"
    run(python, "-m", "compileall", "-q", "generated", cwd=tmp_path)
    check_calls(run(python, "call.py", gateway.url, cwd=tmp_path), gateway)
