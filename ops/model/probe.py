"""Probes a model server: its state, its models, and the number of busy slots."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from http.client import HTTPException
from typing import Any
from urllib.error import URLError

from sluice.ops.http import Fetch, fetch_url

#: Timeout of a request in seconds.
TIMEOUT_S = 3.0


class ServerState(str, Enum):
    """The state of a model server."""

    UP = "up"
    LOADING = "loading"
    DOWN = "down"
    #: The API key is missing or wrong.
    LOCKED = "locked"
    #: It is not a model server.
    STRANGE = "strange"

    @property
    def description(self) -> str:
        """The state as in `the server is …`."""
        texts = {"locked": "rejecting the API key", "strange": "not a model server"}
        return texts.get(self.value, self.value)


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe; None for values that the server does not report."""

    state: ServerState
    #: The reason, for any state other than `UP`.
    reason: str = ""
    models: tuple[str, ...] = ()
    slots: int | None = None
    busy: int | None = None


def probe(
    url: str, api_key: str = "", fetch: Fetch = fetch_url, timeout_s: float = TIMEOUT_S
) -> ProbeResult:
    """Probe an OpenAI-compatible server; only llama.cpp reports slots."""
    root = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        health = fetch(f"{root}/health", timeout_s, headers)
        if health.status == 503:
            return ProbeResult(ServerState.LOADING, _reason(health.body))
        listed = fetch(f"{root}/v1/models", timeout_s, headers)
        slots = fetch(f"{root}/slots", timeout_s, headers)
    except URLError as error:
        return ProbeResult(ServerState.DOWN, str(error.reason))
    except (OSError, HTTPException, ValueError) as error:
        return ProbeResult(ServerState.DOWN, str(error) or type(error).__name__)
    if listed.status in (401, 403):
        return ProbeResult(ServerState.LOCKED, f"HTTP {listed.status}")
    names = _names(listed.body) if listed.status == 200 else None
    if names is None:
        reason = f"/v1/models returns HTTP {listed.status} and no list of models"
        return ProbeResult(ServerState.STRANGE, reason)
    busy = _busy(slots.body) if slots.status == 200 else None
    if busy is None:
        return ProbeResult(ServerState.UP, models=names)
    return ProbeResult(ServerState.UP, models=names, slots=len(busy), busy=sum(busy))


def _reason(body: bytes) -> str:
    content = _json(body)
    error = content.get("error") if isinstance(content, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""


def _names(body: bytes) -> tuple[str, ...] | None:
    content = _json(body)
    listed = content.get("data") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        return None
    return tuple(str(each["id"]) for each in listed if isinstance(each, dict) and "id" in each)


def _busy(body: bytes) -> list[bool] | None:
    content = _json(body)
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        return None
    return [bool(each.get("is_processing")) for each in content]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
