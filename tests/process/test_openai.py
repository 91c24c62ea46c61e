"""The official `openai` package against a real gateway, worker and scripted model server."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.gateway.processes import ROOT
from tests.process.openai_rig import MODEL, OpenAIRig, running_rig

pytestmark = pytest.mark.process

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


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIRig]:
    with running_rig(tmp_path_factory.mktemp("openai")) as made:
        yield made


@pytest.fixture(scope="module")
def client(rig: OpenAIRig) -> Iterator[OpenAI]:
    with OpenAI(base_url=rig.url, api_key="none", timeout=30) as made:
        yield made


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_the_example_of_the_documentation(rig: OpenAIRig) -> None:
    text = (ROOT / "docs" / "openai.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "http://127.0.0.1:8080/v1" in example
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(example.replace("http://127.0.0.1:8080/v1", rig.url), {})
    assert printed.getvalue() == "good morning\n1 2 3 4 5"


def test_chat(rig: OpenAIRig, client: OpenAI) -> None:
    answer = client.chat.completions.create(
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
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("hello there", "stop")
    assert answer.model == MODEL
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    assert answer.id.startswith("chatcmpl-")
    job_id = answer.id.removeprefix("chatcmpl-")
    job = rig.get(f"/v1/jobs/{job_id}")
    assert (job["task"], job["status"], job["result"]["text"]) == ("chat", "done", "hello there")
    assert answer.model_extra is not None
    assert answer.model_extra["sluice"]["job_id"] == job_id


def test_a_truncated_answer(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("count to 9"), max_tokens=3)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (
        "1 2 3",
        "length",
    )


def test_headers(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=user("hi"))
    answer = raw.parse()
    job_id = raw.headers["x-job-id"]
    assert answer.id == f"chatcmpl-{job_id}"
    assert raw.headers["location"] == f"/v1/jobs/{job_id}"
    assert raw.headers["x-request-id"]


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


def test_the_stream_helper_of_the_sdk(client: OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=user("count to 5")) as stream:
        kinds = {event.type for event in stream}
        whole = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert whole.choices[0].message.content == "1 2 3 4 5"


def test_reasoning(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("think of blue"))
    message = answer.choices[0].message
    assert message.content == "blue"
    assert message.model_extra is not None
    assert "They want me" in message.model_extra["reasoning_content"]
    stream = client.chat.completions.create(
        model=MODEL, messages=user("think of blue"), stream=True
    )
    deltas = [chunk.choices[0].delta for chunk in stream]
    thoughts = "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas)
    assert thoughts == message.model_extra["reasoning_content"]
    assert "".join(delta.content or "" for delta in deltas) == "blue"


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


def test_tools_that_sluice_runs(client: OpenAI) -> None:
    asked = 'call calculator with {"expression": "6*7"}'
    for streamed in (False, True):
        answer: Any = client.chat.completions.create(
            model=MODEL, messages=user(asked), extra_body={"tools": ["calculator"]}, stream=streamed
        )
        if streamed:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        else:
            text = answer.choices[0].message.content
        assert "The tool said:" in text
        assert "42" in text


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


def test_an_idempotency_key(client: OpenAI) -> None:
    again = {"Idempotency-Key": "once"}
    ids = {
        client.chat.completions.create(model=MODEL, messages=user("hi"), extra_headers=again).id
        for _ in range(3)
    }
    assert len(ids) == 1
