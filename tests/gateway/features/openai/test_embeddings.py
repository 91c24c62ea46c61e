"""`POST /v1/embeddings`: waits for the job and returns its vectors as numbers or base64."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from tests.gateway.conftest import Gateway
from tests.gateway.features.openai.kit import EMBEDDINGS, Work, beat, error_in, send, work

VECTORS = [[0.5, -0.25, 1.0], [0.1, 0.2, 0.3]]
USAGE = {"prompt_tokens": 6, "completion_tokens": 0, "total_tokens": 6}


async def finish(request: Work, vectors: Any = VECTORS, **more: Any) -> None:
    result = {"vectors": vectors, "dimensions": 3, "model": "minilm", "usage": USAGE, "ms": 4}
    await request.end("done", result=json.dumps({**result, **more}))


async def test_vectors_are_returned_in_order(gateway: Gateway) -> None:
    request = await work(gateway, {"input": ["a", "b"], "model": "minilm"}, EMBEDDINGS)
    assert await request.payload() == {"input": ["a", "b"]}
    await finish(request)
    answer = await request.answer()
    assert answer.status == 200
    assert answer.header("x-job-id") == request.job_id
    assert answer.json() == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": VECTORS[0]},
            {"object": "embedding", "index": 1, "embedding": VECTORS[1]},
        ],
        "model": "minilm",
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
        "sluice": {"job_id": request.job_id},
    }


async def test_base64_is_little_endian_floats(fake_gateway: Gateway) -> None:
    body = {"input": "a", "encoding_format": "base64", "dimensions": 3, "user": "u"}
    request = await work(fake_gateway, body, EMBEDDINGS)
    assert await request.payload() == {"input": "a", "dimensions": 3}
    await finish(request, VECTORS[:1])
    [item] = (await request.answer()).json()["data"]
    assert struct.unpack("<3f", base64.b64decode(item["embedding"])) == tuple(VECTORS[0])


@pytest.mark.parametrize(
    "result",
    ["{}", '{"text":"hi"}', "[]", "", '{"vectors":[["x"]]}', '{"vectors":[[1.0],[2.0]]}'],
)
async def test_an_invalid_result_gets_502(fake_gateway: Gateway, result: str) -> None:
    request = await work(fake_gateway, {"input": "a"}, EMBEDDINGS)
    await request.end("done", result=result)
    error_in(await request.answer(), 502, "worker_answer_invalid")


async def test_a_missing_embedder_gets_503(fake_gateway: Gateway) -> None:
    request = await work(fake_gateway, {"input": "a"}, EMBEDDINGS)
    await request.fail("no_embedder", "run `sluice model install`")
    error = error_in(await request.answer(), 503, "no_embedder")
    assert error["message"] == "run `sluice model install`"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "input"),
        ({"input": None}, "invalid_type", "input"),
        ({"input": ""}, "invalid_value", "input"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": ["a", ""]}, "invalid_value", "input[1]"),
        ({"input": ["a", 5]}, "invalid_type", "input[1]"),
        ({"input": ["a"] * 257}, "invalid_value", "input"),
        ({"input": [1, 2, 3]}, "unsupported_value", "input"),
        ({"input": [[1, 2], [3]]}, "unsupported_value", "input"),
        ({"input": "a", "encoding_format": "hex"}, "invalid_value", "encoding_format"),
        ({"input": "a", "dimensions": 0}, "invalid_value", "dimensions"),
        ({"input": "a", "dimensions": 1.5}, "invalid_type", "dimensions"),
        ({"input": "a", "input_type": "query"}, "unknown_parameter", "input_type"),
    ],
)
async def test_invalid_requests_are_rejected(
    fake_gateway: Gateway, body: Any, code: str, param: str
) -> None:
    error = error_in(await send(fake_gateway, body, EMBEDDINGS), 400, code)
    assert error["param"] == param


async def test_a_chat_model_is_not_an_embedding_model(fake_gateway: Gateway) -> None:
    await beat(fake_gateway, name="tiny", embedder="minilm")
    error = error_in(
        await send(fake_gateway, {"input": "a", "model": "tiny"}, EMBEDDINGS),
        404,
        "model_not_found",
    )
    assert "`minilm`" in error["message"]
