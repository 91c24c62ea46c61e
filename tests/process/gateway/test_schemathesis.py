"""Schemathesis against a real gateway: no 5xx, and only responses of the OpenAPI document.

Every operation is called with its examples, with boundary values of its schemas and with random
values (always the same ones), both valid and invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from sluice.common.contracts.jobs import QUEUE_STREAM, JobKeys
from sluice.common.contracts.queue import paused_key
from sluice.common.observability.heartbeats import Heartbeat
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.app import create_app
from sluice.gateway.auth.permissions import permission_for
from sluice.gateway.auth.read_tokens import read_target
from sluice.gateway.features.images.upload.sink import UPLOAD_TYPES
from sluice.gateway.http import paths as workflow
from sluice.gateway.http.paths import DASHBOARD_SESSION
from tests.support.gateway.harness import CHAT
from tests.support.processes.gateway import gateway_starter
from tests.support.processes.worker import Process
from tests.support.servers import RealServer

pytestmark = [pytest.mark.process, pytest.mark.slow("calls every operation many times")]

Test = TypeVar("Test", bound=Callable[..., None])

CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
STRICT = [*CHECKS, unsupported_method, negative_data_rejection]
REFUSALS = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, 431, "5xx"]
#: Statuses such as a running check or a full queue are valid responses; so is the end of a stream.
HIGH_LIMITS = {
    "BACKPRESSURE_MAX_BACKLOG": "100000",
    "BULLMQ_ADD_QUEUES": "video",
    "MAX_WAIT_S": "0.2",
    "SSE_MAX_LIFE_S": "1",
}
DEAD_LETTER: Any = {
    "reason": "attempts_exhausted",
    "fields": '{"task":"chat","payload":"{}"}',
    "ts": "1760000000000",
}
#: Answers chats and embeddings without a model, whose output might be invalid.
REPLYING = "tests.support.gateway.replying_worker"
DOCUMENT = create_app(GatewaySettings(redis_url="redis://nowhere")).openapi()


@schemathesis.serializer("application/pdf", "text/markdown", *UPLOAD_TYPES)
def _as_it_is(_: Any, value: object) -> bytes:
    """Sends a file unchanged; generated content is hardly ever a valid document."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


def _schema(*, coverage: bool) -> Any:
    """The schema, with deterministic calls."""
    config = {
        "generation": {
            "deterministic": True,
            "database": "none",
            "with-security-parameters": False,
        },
        "phases": {"coverage": {"enabled": coverage}, "stateful": {"enabled": False}},
        # Some values exceed a limit of the gateway: 413 for a body, 431 for a head.
        "checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}},
    }
    return schemathesis.openapi.from_dict(DOCUMENT, config=schemathesis.Config.from_dict(config))


def operations_test(operations: Any, examples: int) -> Callable[[Test], Test]:
    """A test per operation, with this number of random calls."""
    bounded = settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return cast("Callable[[Test], Test]", lambda test: operations.parametrize()(bounded(test)))


thorough, brief = _schema(coverage=True), _schema(coverage=False)


@dataclass(frozen=True)
class Gateways:
    """A gateway without keys and one with keys, on one Redis with a worker."""

    open: str
    keyed: str
    #: Keys for the second gateway: with all scopes, and with few.
    admin: str
    reader: str
    server: RealServer

    def make(self, name: str, path: str = "") -> str:
        """Creates an object for a path parameter; returns its id."""
        if path.startswith(workflow.WORKFLOW_PREFIX):
            return self._of_workflow(name)
        if name == "job_id":
            answer = httpx.post(f"{self.open}/v1/jobs", json=CHAT, headers={"Prefer": "wait=1"})
            return str(answer.json()[name])
        if name == "key_id":
            return _key(self.open, "ui")[name]
        if name == "model":  # the model's name in the worker's heartbeat, valid while it is fresh
            beat = Heartbeat(consumer=name, embedder="org/vectors")
            self.server.client.zadd("jobs:stream:workers", {name: 1})
            self.server.client.set(f"jobs:stream:worker:{name}", beat.to_json(), ex=2)
            return beat.embedder
        if name == "ns":
            return "default"
        if name == "name":
            return QUEUE_STREAM
        if name == "queue":
            return HIGH_LIMITS["BULLMQ_ADD_QUEUES"]
        if name == "id":  # of a job in that queue
            where = f"{self.open}/v1/bullmq/{self.make('queue')}/jobs"
            return str(httpx.post(where, json={"name": "render"}).json()[name])
        if name == "image_id":
            return str(httpx.post(f"{self.open}/v1/images").json()[name])
        if name == "document_id":
            document = {"id": "note", "text": "The office opens at nine."}
            where = f"{self.open}/v1/rag/default/documents"
            httpx.post(where, json=document, headers={"Prefer": "wait=1"})
            return document["id"]
        assert name == "letter_id"
        letter_id: Any = self.server.client.xadd("jobs:dlq", DEAD_LETTER)
        return str(letter_id.decode())

    def _of_workflow(self, name: str) -> str:
        if name == "job_id":
            return str(httpx.post(f"{self.open}{workflow.WORKFLOW_JOBS}").json()["job"][name])
        return {"step_name": "sources", "proposal_id": "p_001"}[name]


@pytest.fixture(scope="module")
def gateways(
    module_server: RealServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateways]:
    directory, server = tmp_path_factory.mktemp("schemathesis"), module_server
    data = str(directory / "data")
    worker = Process(REPLYING, directory / "worker", redis_url=server.url, sluice_data_dir=data)
    try:
        for start in gateway_starter(directory):
            started = [
                start(server.url, AUTH=auth, SLUICE_DATA_DIR=data, **HIGH_LIMITS)
                for auth in ("off", "required")
            ]
            urls = [gateway.url for gateway in started]
            admin, reader = (_key(urls[0], scope)["key"] for scope in ("admin", "jobs:read"))
            yield Gateways(urls[0], urls[1], admin, reader, server)
            for gateway in started:
                assert "Traceback" not in gateway.log, gateway.log
    finally:
        worker.kill()


@pytest.fixture(autouse=True)
def resumed(gateways: Gateways) -> Iterator[None]:
    """One of the calls pauses the queue, which would block the others."""
    yield
    if gateways.server.client.delete(paused_key(QUEUE_STREAM)):
        gateways.server.client.publish(JobKeys().control, paused_key(QUEUE_STREAM))


def _key(url: str, scope: str) -> dict[str, str]:
    answer = httpx.post(f"{url}/v1/keys", json={"name": scope, "tenant": "t", "scopes": [scope]})
    assert answer.status_code == 201, answer.text
    made: dict[str, str] = answer.json()
    return made


def _as_a_page(case: Any, url: str) -> dict[str, str]:
    """Sessions are for pages of the gateway itself."""
    return {"Origin": url, "X-Sluice-UI": "1"} if case.operation.path == DASHBOARD_SESSION else {}


@operations_test(thorough, 5)
def test_every_answer_is_documented(case: Any, gateways: Gateways) -> None:
    headers = _as_a_page(case, gateways.open)
    case.call_and_validate(base_url=gateways.open, headers=headers, checks=STRICT, timeout=20)


@operations_test(brief.include(path_regex="{"), 4)
def test_every_answer_about_existing_objects_is_documented(case: Any, gateways: Gateways) -> None:
    """Random ids refer to nothing."""
    for name in case.path_parameters:
        case.path_parameters[name] = gateways.make(name, case.operation.path)
    case.call_and_validate(base_url=gateways.open, checks=CHECKS, timeout=20)


@operations_test(brief, 2)
def test_every_answer_with_required_keys_is_documented(case: Any, gateways: Gateways) -> None:
    public = permission_for(case.method.upper(), case.operation.path).public
    for key in ("", gateways.reader, gateways.admin):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        headers |= _as_a_page(case, gateways.keyed)
        answer = case.call(base_url=gateways.keyed, headers=headers, timeout=20)
        case.validate_response(answer, checks=CHECKS)
        if case.operation.path == DASHBOARD_SESSION:
            continue  # the key in the body counts
        if "control character" in answer.text:  # checked before the key
            assert answer.status_code == 400
            assert not unquote(case.formatted_path).isprintable()
            continue
        # No generated read token is valid, and one in addition to a key is refused.
        query = urlsplit(answer.request.url).query.split("&")
        takes_token = read_target(case.method.upper(), unquote(case.formatted_path)) is not None
        has_token = takes_token and any(part.startswith("token=") for part in query)
        assert (answer.status_code == 401) is ((not key or has_token) and not public)
        assert answer.status_code != 403 or key == gateways.reader
