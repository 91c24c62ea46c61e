"""Asks a model server how it is: whether it answers, what it serves, how busy it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from http.client import HTTPException
from typing import Any
from urllib.error import URLError

from ops.fetching import Fetch, fetch_url

#: Seconds an answer may take.
ANSWER_S = 3.0


class State(str, Enum):
    """How a server is."""

    UP = "up"
    LOADING = "loading"
    DOWN = "down"
    #: It wants a key, or another one.
    LOCKED = "locked"
    #: Whoever answers is no model server.
    STRANGE = "strange"


@dataclass(frozen=True)
class Seen:
    """What it said; None for what it does not tell."""

    state: State
    #: Why, for a state that is not `UP`.
    reason: str = ""
    models: tuple[str, ...] = ()
    slots: int | None = None
    busy: int | None = None


def look(
    url: str, api_key: str = "", fetch: Fetch = fetch_url, timeout_s: float = ANSWER_S
) -> Seen:
    """Ask an OpenAI-compatible server; one that is not llama.cpp has no slots to tell of."""
    root = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        health = fetch(f"{root}/health", timeout_s, headers)
        if health.status == 503:
            return Seen(State.LOADING, _reason(health.body))
        listed = fetch(f"{root}/v1/models", timeout_s, headers)
        slots = fetch(f"{root}/slots", timeout_s, headers)
    except URLError as error:
        return Seen(State.DOWN, str(error.reason))
    except (OSError, HTTPException, ValueError) as error:
        return Seen(State.DOWN, str(error) or type(error).__name__)
    if listed.status in (401, 403):
        return Seen(State.LOCKED, f"it answers {listed.status}")
    names = _names(listed.body) if listed.status == 200 else None
    if names is None:
        return Seen(State.STRANGE, f"/v1/models answers {listed.status}, and no list of models")
    busy = _busy(slots.body) if slots.status == 200 else None
    if busy is None:
        return Seen(State.UP, models=names)
    return Seen(State.UP, models=names, slots=len(busy), busy=sum(busy))


def _reason(body: bytes) -> str:
    told = _json(body)
    error = told.get("error") if isinstance(told, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""


def _names(body: bytes) -> tuple[str, ...] | None:
    told = _json(body)
    listed = told.get("data") if isinstance(told, dict) else None
    if not isinstance(listed, list):
        return None
    return tuple(str(each["id"]) for each in listed if isinstance(each, dict) and "id" in each)


def _busy(body: bytes) -> list[bool] | None:
    told = _json(body)
    if not isinstance(told, list) or not all(isinstance(each, dict) for each in told):
        return None
    return [bool(each.get("is_processing")) for each in told]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
