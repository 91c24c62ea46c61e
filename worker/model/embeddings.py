"""Vectors from a model server: asked for together, checked one by one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from worker.model.chunks import failure_in, parse, rows_in, usage_of
from worker.model.endpoint import Endpoint
from worker.model.errors import FirstTokenTimeout, ModelAnswerInvalid
from worker.model.http import Http, body_of, check, refusal
from worker.model.types import Usage


async def ask(
    http: Http,
    endpoint: Endpoint,
    model: str,
    texts: Sequence[str],
    within_s: float,
    dimensions: int | None = None,
) -> tuple[list[list[float]], Usage]:
    """One vector a text. Raises Hiccup for what may pass, errors of a job for what will not."""
    if not texts:
        return [], Usage()
    try:
        raw = await asyncio.wait_for(_post(http, endpoint, model, texts, dimensions), within_s)
    except asyncio.TimeoutError:
        raise FirstTokenTimeout(
            f"the model server made no vectors within {within_s:g} s; "
            "send fewer texts or raise MODEL_FIRST_TOKEN_TIMEOUT_S"
        ) from None
    value = parse(raw)
    error = failure_in(value, endpoint.secret)
    if error is not None:
        raise refusal(endpoint, error.code, f"{endpoint.base} says: {error.message}")
    usage = usage_of(value.get("usage")) if isinstance(value, dict) else None
    return _vectors(value, len(texts)), usage or Usage()


async def _post(
    http: Http, endpoint: Endpoint, model: str, texts: Sequence[str], dimensions: int | None
) -> bytes:
    body: dict[str, Any] = {"input": list(texts), "encoding_format": "float"}
    if model:
        body["model"] = model
    if dimensions is not None:
        body["dimensions"] = dimensions
    url = endpoint.api("/embeddings")
    async with http.request(endpoint, "POST", url, body) as response:
        await check(response, endpoint)
        return await body_of(response)


def _vectors(value: Any, count: int) -> list[list[float]]:
    """The vectors in an answer, in the order of their texts."""
    data = rows_in(value)
    if data is None:
        raise _strange("has no list of vectors")
    if len(data) != count:
        raise _strange(f"has {len(data)} vectors for {count} texts")
    numbers = [each.get("index", place) for place, each in enumerate(data)]
    if sorted(map(str, numbers)) != sorted(map(str, range(count))):
        raise _strange("numbers its vectors badly")
    found: dict[int, list[float]] = {
        int(number): _vector(each.get("embedding")) for number, each in zip(numbers, data)
    }
    vectors = [found[place] for place in range(count)]
    if len({len(vector) for vector in vectors}) != 1:
        raise _strange("has vectors of several lengths")
    return vectors


def _vector(value: Any) -> list[float]:
    if not isinstance(value, list) or not value:
        raise _strange("has an empty vector")
    if isinstance(value[0], list):
        raise _strange("has a vector for each token; start llama-server with `--pooling mean`")
    if not all(isinstance(each, (int, float)) and math.isfinite(each) for each in value):
        raise _strange("has a vector of something else than numbers")
    return [float(each) for each in value]


def _strange(what: str) -> ModelAnswerInvalid:
    return ModelAnswerInvalid(f"the model server's answer {what}")
