"""Requests embeddings from a model server and validates them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from sluice.common.text import plural
from sluice.worker.features.model.endpoint import Endpoint
from sluice.worker.features.model.errors import FirstTokenTimeout, ModelAnswerInvalid
from sluice.worker.features.model.types import Usage
from sluice.worker.features.model.wire.chunks import find_error, parse_json, parse_rows, parse_usage
from sluice.worker.features.model.wire.http import (
    ModelHttpClient,
    check_status,
    read_body,
    refused_error,
)


async def request_embeddings(
    http: ModelHttpClient,
    endpoint: Endpoint,
    model: str,
    texts: Sequence[str],
    within_s: float,
    dimensions: int | None = None,
) -> tuple[list[list[float]], Usage]:
    """One vector per text. Raises RetryableFailure for temporary failures, a JobError otherwise."""
    if not texts:
        return [], Usage()
    try:
        raw = await asyncio.wait_for(_post(http, endpoint, model, texts, dimensions), within_s)
    except asyncio.TimeoutError:
        raise FirstTokenTimeout(
            f"the model server returned no embeddings within {within_s:g} s; "
            "send fewer texts or raise MODEL_FIRST_TOKEN_TIMEOUT_S"
        ) from None
    value = parse_json(raw)
    error = find_error(value, endpoint.secret)
    if error is not None:
        raise refused_error(endpoint, error.code, f"{endpoint.base} replied: {error.message}")
    usage = parse_usage(value.get("usage")) if isinstance(value, dict) else None
    return _vectors(value, len(texts)), usage or Usage()


async def _post(
    http: ModelHttpClient,
    endpoint: Endpoint,
    model: str,
    texts: Sequence[str],
    dimensions: int | None,
) -> bytes:
    body: dict[str, Any] = {"input": list(texts), "encoding_format": "float"}
    if model:
        body["model"] = model
    if dimensions is not None:
        body["dimensions"] = dimensions
    url = endpoint.api("/embeddings")
    async with http.request(endpoint, "POST", url, body) as response:
        await check_status(response, endpoint)
        return await read_body(response)


def _vectors(value: Any, count: int) -> list[list[float]]:
    """The vectors of a response, in the order of their texts."""
    data = parse_rows(value)
    if data is None:
        raise _invalid_answer("has no list of vectors")
    if len(data) != count:
        raise _invalid_answer(f"has {plural(len(data), 'vector')} for {plural(count, 'text')}")
    numbers = [each.get("index", position) for position, each in enumerate(data)]
    if sorted(map(str, numbers)) != sorted(map(str, range(count))):
        raise _invalid_answer("has vectors with wrong indexes")
    found: dict[int, list[float]] = {
        int(number): _vector(each.get("embedding")) for number, each in zip(numbers, data)
    }
    vectors = [found[position] for position in range(count)]
    if len({len(vector) for vector in vectors}) != 1:
        raise _invalid_answer("has vectors of several lengths")
    return vectors


def _vector(value: Any) -> list[float]:
    if not isinstance(value, list) or not value:
        raise _invalid_answer("has an empty vector")
    if isinstance(value[0], list):
        raise _invalid_answer(
            "has a vector for each token; start llama-server with `--pooling mean`"
        )
    try:
        if all(isinstance(each, (int, float)) and math.isfinite(each) for each in value):
            return [float(each) for each in value]
    except OverflowError:  # an integer that is larger than any float
        pass
    raise _invalid_answer("has a vector with values that are not numbers")


def _invalid_answer(what: str) -> ModelAnswerInvalid:
    return ModelAnswerInvalid(f"the model server's answer {what}")
