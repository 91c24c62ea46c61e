"""The parts that do no input or output: paths, queries, patience, joined answers, both faces."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from datetime import datetime, timezone

import pytest

import client
from client import AsyncJobHandle, AsyncSluice, JobHandle, Sluice
from client.aio.documents import Documents as AsyncDocuments
from client.aio.images import Images as AsyncImages
from client.aio.workflows import Workflows as AsyncWorkflows
from client.core import jobs_api
from client.core.calls import call, query_text, retry_after_s, segment
from client.core.following import Following, Joining
from client.core.models import Event, Job
from client.core.reading import nothing
from client.core.retrying import LONGEST_RETRY_AFTER_S, Retrying
from client.core.sse import Message
from client.errors import Broken, JobCanceled, JobFailed, NotFound, SluiceError, Unreachable
from client.exits import Exit
from client.sync.documents import Documents
from client.sync.images import Images
from client.sync.workflows import Workflows
from tests.gateway.processes import ROOT


@pytest.mark.parametrize(
    ("text", "part"),
    [("a-b_c.1", "a-b_c.1"), ("../x", "..%2Fx"), ("..", "%2E%2E"), (".", "%2E"), ("ä", "%C3%A4"),
     ("a?b#c", "a%3Fb%23c"), ("", "%20"), ("a\nb", "a%0Ab")],
)  # fmt: skip
def test_an_id_is_one_part_of_a_path(text: str, part: str) -> None:
    assert segment(text) == part


def test_queries() -> None:
    assert query_text({"a": None}) == ""
    query = {"status": ["done", "error"], "q": "ä&", "limit": 5, "all": True, "none": None}
    assert query_text(query) == "?status=done&status=error&q=%C3%A4%26&limit=5&all=true"


def test_times_are_milliseconds_or_have_a_zone() -> None:
    assert jobs_api.moment(1760000000000) == "1760000000000"
    assert jobs_api.moment("2030-01-31T08:00:00Z") == "2030-01-31T08:00:00Z"
    assert jobs_api.moment(datetime(2030, 1, 31, tzinfo=timezone.utc)).endswith("+00:00")
    with pytest.raises(ValueError, match="time zone"):
        jobs_api.moment(datetime(2030, 1, 31))


def test_what_is_no_json_is_refused_here() -> None:
    with pytest.raises(ValueError):
        jobs_api.submit("chat", {"x": float("nan")})
    with pytest.raises(TypeError):
        jobs_api.submit("chat", {"x": object()})


@pytest.mark.parametrize("key", ["", "ä", "a\nb", "x" * 256])
def test_what_is_no_idempotency_key_is_refused_here(key: str) -> None:
    with pytest.raises(ValueError, match="idempotency key"):
        jobs_api.submit("chat", {}, idempotency_key=key)


def test_when_to_come_back() -> None:
    assert retry_after_s({"retry-after": "7"}) == 7
    assert retry_after_s({"retry-after": "7", "retry-after-ms": "1500"}) == 1.5
    for odd in ("", "soon", "-3", "Wed, 21 Oct 2026 07:28:00 GMT", "٣"):
        assert retry_after_s({"retry-after": odd}) is None


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_tries_are_counted() -> None:
    tries = Retrying(2)
    error = Unreachable("away")
    assert tries.pause_s(error) is not None
    assert tries.pause_s(error) is not None
    assert tries.pause_s(error) is None


def test_patience_is_time() -> None:
    clock = Clock()
    tries = Retrying(patience_s=10, clock=clock)
    for _ in range(50):
        assert tries.pause_s(Unreachable("away")) is not None
    clock.now = 11
    assert tries.pause_s(Unreachable("away")) is None


def test_what_does_not_pass_is_not_tried_again() -> None:
    assert Retrying().pause_s(NotFound("no", 404)) is None
    late = Unreachable("away")
    late.retry_after_s = LONGEST_RETRY_AFTER_S + 1
    assert Retrying().pause_s(late) is None


def test_what_is_not_repeatable_is_tried_again_only_where_nobody_heard_it() -> None:
    asked = call("POST", "/x", nothing)
    assert not asked.repeatable
    assert Retrying().pause_s(Broken("?"), asked) is None
    assert Retrying().pause_s(Unreachable("refused"), asked) is not None
    assert Retrying().pause_s(Broken("?"), call("POST", "/x", nothing, key="k")) is not None


def test_who_is_greeted_and_dropped_comes_back_less_and_less_often() -> None:
    stream = Following("/x", patience_s=10)
    pauses = []
    for _ in range(12):
        assert not stream.took(Message("", "hello", "{}"))
        pauses.append(stream.pause_s(Broken("dropped"), 0.1))
    assert pauses[-1] > 2
    stream.took(Message("1-0", "queued", "{}"))
    assert stream.pause_s(Broken("dropped"), None) < 1


def test_a_stream_that_is_lost_is_given_up_in_the_end() -> None:
    clock, said = Clock(), []
    stream = Following("/x", patience_s=10, clock=clock, say=said.append)
    stream.pause_s(Broken("dropped"), None)
    stream.pause_s(Unreachable("away"), None)
    clock.now = 11
    with pytest.raises(Unreachable):
        stream.pause_s(Unreachable("away"), None)
    assert said == ["dropped; coming back"]
    with pytest.raises(NotFound):
        stream.pause_s(NotFound("no", 404), None)


def message(text: str, **more: object) -> Event:
    return Event("", "message", 0, "", {"delta": text, **more})


def test_an_answer_is_that_of_the_last_round_of_the_last_attempt() -> None:
    joining = Joining()
    joining.add(message("old", attempt=1))
    joining.add(Event("", "running", 0, "", {"attempt": 2}))
    joining.add(message("tool", attempt=2))
    joining.add(message("ne", attempt=2, round=2))
    joining.add(message("w", attempt=2, round=2))
    joining.add(Event("", "reasoning", 0, "", {"delta": "hm"}))
    assert joining.text == "new"


def test_outcomes() -> None:
    job = Job("j", "chat", "done", 1, 2, 3, result={"a": 1})
    assert jobs_api.outcome(job) == {"a": 1}
    failed = Job("j", "chat", "error", 1, 2, 3, error={"kind": "timeout", "message": "too long"})
    with pytest.raises(JobFailed, match="timeout: too long") as raised:
        jobs_api.outcome(failed)
    assert (raised.value.exit_code, raised.value.job) == (Exit.FAILED, failed)
    with pytest.raises(JobCanceled) as canceled:
        jobs_api.outcome(Job("j", "chat", "canceled", 1, 2, 3))
    assert canceled.value.exit_code == Exit.CANCELED


# -- both faces ----------------------------------------------------------------------------


FACES = [
    (Sluice, AsyncSluice),
    (JobHandle, AsyncJobHandle),
    (Workflows, AsyncWorkflows),
    (Images, AsyncImages),
    (Documents, AsyncDocuments),
]


@pytest.mark.parametrize(("plain", "awaited"), FACES)
def test_both_clients_have_the_same_methods(plain: type, awaited: type) -> None:
    def public(kind: type) -> dict[str, list[str]]:
        return {
            name: [str(each).partition(":")[0] for each in signature(kind, name)]
            for name in dir(kind)
            if not name.startswith("_") and inspect.isfunction(getattr(kind, name))
        }

    def signature(kind: type, name: str) -> list[inspect.Parameter]:
        return list(inspect.signature(getattr(kind, name)).parameters.values())

    assert public(plain) == public(awaited)
    for name in public(plain):
        assert getattr(plain, name).__doc__ == getattr(awaited, name).__doc__, name


def test_every_name_can_be_had() -> None:
    for name in client.__all__:
        assert getattr(client, name).__name__ == name
    with pytest.raises(AttributeError, match="Nonsense"):
        client.Nonsense  # noqa: B018


def test_every_error_is_of_the_tree() -> None:
    from client import errors

    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    ours = [kind for kind in kinds if kind.__module__ == errors.__name__]
    assert len(ours) > 12
    assert all(issubclass(kind, SluiceError) for kind in ours)


def loaded(code: str, names: str) -> str:
    program = f"import sys\n{code}\nprint(*sorted(set({names.split()}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_what_takes_long_is_not_loaded_before_it_is_needed() -> None:
    heavy = "asyncio httpx2 pydantic logging redis fastapi"
    assert loaded("import client", f"{heavy} http.client dataclasses typing") == ""
    assert loaded("from client import Sluice; Sluice('http://x')", heavy) == ""
    assert loaded("from client import AsyncSluice; AsyncSluice('http://x')", "httpx2") == ""


@pytest.mark.parametrize("room", ["core", "sync", "aio"])
def test_the_library_is_of_the_standard_library(room: str) -> None:
    known = {*sys.stdlib_module_names, "client", *({"httpx2"} if room == "aio" else ())}
    modules = list((ROOT / "client" / room).glob("*.py"))
    assert modules
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= known, path
