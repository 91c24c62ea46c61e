"""The official `openai` package against a real gateway, worker and scripted model server."""

from __future__ import annotations

import asyncio
import io
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from tests.support.processes.model import ModelProcesses, ScriptedModel
from tests.support.processes.worker import ROOT, spawner, wait_until
from tests.support.servers import RealServer

if TYPE_CHECKING:  # imported by the tests only: the package takes 12 MB of every test process
    from openai import OpenAI

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("openai")]
SLOW = pytest.mark.slow("waits for the answers of a slow model")

#: Time limit from a disconnect to the end of the job.
CANCELED_WITHIN_S = 0.25
#: The fastest of this many attempts counts, because the machine may be busy.
TRIES = 3

MODEL = "scripted-1"
CLOCK: Any = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "What time it is.",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string"}},
            "required": ["zone"],
        },
    },
}


#: Settings of the workers.
WITH_VECTORS = {"embedder": "server"}


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    model = ScriptedModel()
    yield model
    model.kill()


@pytest.fixture(scope="module")
def processes(
    model: ScriptedModel, module_server: RealServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModelProcesses]:
    folder = tmp_path_factory.mktemp("openai")

    def model_is_reported() -> bool:
        beats = map(module_server.client.get, module_server.client.keys("jobs:stream:worker:*"))
        return any(MODEL in json.loads(beat).get("embedder", "") for beat in beats if beat)

    with contextmanager(spawner)(folder) as spawn:
        processes = ModelProcesses(module_server.url, spawn, folder, model_url=model.url)
        processes.worker(**WITH_VECTORS)
        wait_until(model_is_reported)
        yield processes
        processes.close()
    assert "Traceback" not in processes.gateway.log


@pytest.fixture(scope="module")
def client(processes: ModelProcesses) -> Iterator[OpenAI]:
    from openai import OpenAI

    with OpenAI(base_url=f"{processes.url}/v1", api_key="none", timeout=30, max_retries=0) as made:
        yield made


def test_the_example_of_the_documentation(processes: ModelProcesses) -> None:
    text = (ROOT / "docs" / "openai.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "http://127.0.0.1:8080/v1" in example
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(example.replace("http://127.0.0.1:8080", processes.url), {})
    assert printed.getvalue() == "good morning\n1 2 3 4 5"


def test_chat(processes: ModelProcesses, client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "say exactly: hello there"}]},
        ],
        temperature=0,
        max_completion_tokens=50,
        seed=1,
        user="u1",
    )
    answer, job_id = raw.parse(), raw.headers["x-job-id"]
    assert raw.headers["location"] == f"/v1/jobs/{job_id}"
    assert raw.headers["x-request-id"]
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("hello there", "stop")
    assert (answer.id, answer.model) == (f"chatcmpl-{job_id}", MODEL)
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    assert answer.model_extra is not None
    assert answer.model_extra["sluice"]["job_id"] == job_id
    job = processes.get(f"/v1/jobs/{job_id}")
    assert (job["task"], job["status"], job["result"]["text"]) == ("chat", "done", "hello there")
    [cut] = client.chat.completions.create(
        model=MODEL, messages=user("count to 9"), max_tokens=3
    ).choices
    assert (cut.message.content, cut.finish_reason) == ("1 2 3", "length")


def test_a_stream(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=user("count to 20 slowly"),
        stream=True,
        stream_options={"include_usage": True},
    )
    found = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in found if chunk.choices]
    assert "".join(pieces) == " ".join(map(str, range(1, 21)))
    assert len([piece for piece in pieces if piece]) > 5  # it was streamed
    assert found[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in found if chunk.choices][-1] == "stop"
    assert found[-1].usage is not None
    assert found[-1].usage.completion_tokens == 20
    with client.chat.completions.stream(model=MODEL, messages=user("count to 5")) as helper:
        kinds = {event.type for event in helper}
        whole = helper.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert whole.choices[0].message.content == "1 2 3 4 5"


@pytest.mark.parametrize("streamed", [False, True])
def test_functions_of_the_client(client: OpenAI, streamed: bool) -> None:
    """A complete round: the model requests a call, the client runs it and sends the result."""
    messages: list[Any] = user('call clock with {"zone": "utc"}')
    if streamed:
        with client.chat.completions.stream(
            model=MODEL, messages=messages, tools=[CLOCK]
        ) as stream:
            for _ in stream:
                pass
            choice: Any = stream.get_final_completion().choices[0]
    else:
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[CLOCK])
        choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "clock")
    assert json.loads(call.function.arguments) == {"zone": "utc"}
    messages += [
        choice.message,  # unchanged
        {"role": "tool", "tool_call_id": call.id, "content": "noon"},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[CLOCK])
    assert answer.choices[0].message.content == "The tool said: noon"


class Person(BaseModel):
    """The form of an answer."""

    name: str
    age: int


def test_structured_answers(client: OpenAI) -> None:
    asked = user('say exactly: {"name": "Ann", "age": 7}')
    parsed = client.chat.completions.parse(model=MODEL, messages=asked, response_format=Person)
    assert parsed.choices[0].message.parsed == Person(name="Ann", age=7)
    plain = client.chat.completions.create(
        model=MODEL, messages=asked, response_format={"type": "json_object"}
    )
    assert json.loads(plain.choices[0].message.content or "")["name"] == "Ann"
    with client.chat.completions.stream(
        model=MODEL, messages=asked, response_format=Person
    ) as stream:
        whole = stream.get_final_completion()
    assert whole.choices[0].message.parsed == Person(name="Ann", age=7)


def test_embeddings(client: OpenAI) -> None:
    """SDKs request base64 by default."""
    texts = ["a gate", "a stream of water"]
    packed = client.embeddings.create(model=MODEL, input=texts)
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [item.index for item in packed.data] == [0, 1]
    assert packed.model == MODEL
    assert packed.usage.prompt_tokens == plain.usage.prompt_tokens > 0
    for one, other in zip(packed.data, plain.data):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert sum(number * number for number in one.embedding) == pytest.approx(1, abs=1e-4)
    [single] = client.embeddings.create(model=MODEL, input="a gate").data
    assert single.embedding == packed.data[0].embedding


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "sluice"


# -- refusals --------------------------------------------------------------------------------------


def test_errors_of_the_sdk(client: OpenAI) -> None:
    import openai

    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=user("hi"))
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert f"`{MODEL}`" in unknown.value.message
    assert unknown.value.request_id
    for streamed in (False, True):  # also for a stream that has not started yet
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(
                model=MODEL, messages=user("fail with 400"), stream=streamed
            )
        assert error.value.code == "model_refused"
        assert "asked to fail" in error.value.message


# -- disconnects -----------------------------------------------------------------------------


@SLOW
async def test_a_disconnect_during_the_stream_cancels_the_job(
    processes: ModelProcesses, model: ScriptedModel
) -> None:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{processes.url}/v1", api_key="x", timeout=30) as client:
        took_s = []
        for _ in range(TRIES):
            raw = await client.chat.completions.with_raw_response.create(
                model=MODEL, messages=user("count to 5000 slowly"), stream=True
            )
            job_id = raw.headers["x-job-id"]
            stream: Any = raw.parse()
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            left = time.monotonic()
            await stream.close()
            assert (await asyncio.to_thread(processes.ended, job_id))["status"] == "canceled"
            took_s.append(time.monotonic() - left)
    assert min(took_s) < CANCELED_WITHIN_S
    # The request to the model server has ended, too.
    assert wait_until(lambda: all(asked["over"] for asked in model.requests))
    assert model.requests[-1]["hung_up"]


@SLOW
def test_a_worker_dies_during_an_answer(
    processes: ModelProcesses, client: OpenAI, module_server: RealServer
) -> None:
    """Another worker takes over; the client notices only a pause."""
    stream = client.chat.completions.create(
        model=MODEL, messages=user("count to 60 slowly"), stream=True
    )
    chunks = job_id = ""
    for chunk in stream:
        chunks += chunk.choices[0].delta.content or ""
        if "20" in chunks and not job_id:
            processes.workers[-1].kill()
            processes.start_worker("other", **WITH_VECTORS)
            job_id = chunk.id.removeprefix("chatcmpl-")
    assert chunks == " ".join(map(str, range(1, 61)))
    events: Any = module_server.client.xrange(f"job:{job_id}:events")
    assert [fields[b"type"] for _, fields in events].count(b"running") == 2
