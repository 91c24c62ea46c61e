"""Dead letters for tests: as Sluice's scripts write them, and invalid ones."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tests.support.gateway.asgi import JSON, Answer
from tests.support.gateway.harness import Gateway

NOON = 1_760_000_000_000
_numbers = itertools.count()
EXHAUSTED, NO_JOB = "attempts_exhausted", "job_missing_or_expired"
DEEP = b"[" * 2000 + b"]" * 2000
#: Invalid entries of the dead-letter stream; none of them can be redriven.
HOSTILE: dict[str, dict[bytes, bytes]] = {
    "unknown field": {b"x": b"y"},
    "empty field": {b"": b""},
    "not UTF-8": {
        b"reason": b"\xff\xfe",
        b"fields": b'{"task":"chat","payload":"\xff"}',
        b"message_id": b"\xc0",
        b"job_id": b"\xed\xa0\x80",
        b"last_error": b"\x80",
    },
    "no JSON": {b"reason": b"r", b"fields": b"{", b"first_error": b"oops", b"ts": b"soon"},
    "fields a list": {b"fields": b"[1,2]"},
    "fields a number": {b"fields": b"7"},
    "fields deep": {b"fields": DEEP, b"last_error": DEEP},
    "line breaks": {b"reason": b"a\r\nb", b"fields": b'{"a":\n1}', b"job_id": b"\r\nX: y"},
    "numbers beyond reason": {b"attempts": b"9" * 5000, b"ts": b"-1", b"fields": b"9" * 5000},
    "task unknown": {b"fields": b'{"task":"dance","payload":"{}"}'},
    "task missing": {b"fields": b'{"payload":"{}"}'},
    "task a list": {b"fields": b'{"task":["chat"],"payload":"{}"}'},
    "task null": {b"fields": b'{"task":null,"payload":"{}"}'},
    "payload missing": {b"fields": b'{"task":"chat"}'},
    "payload an object": {b"fields": b'{"task":"chat","payload":{}}'},
    "payload false": {b"fields": b'{"task":"chat","payload":false}'},
    "payload empty": {b"fields": b'{"task":"chat","payload":""}'},
    "payload a list": {b"fields": b'{"task":"chat","payload":"[]"}'},
    "payload no JSON": {b"fields": b'{"task":"chat","payload":"{a}"}'},
    "payload deep": {b"fields": b'{"task":"chat","payload":"{\\"a\\":%b}"}' % DEEP},
    "lone surrogate": {b"fields": b'{"task":"chat","payload":"{\\"a\\":\\"\\ud800\\"}"}'},
    "giant": {b"reason": b"r" * 1_000_000, b"fields": b'{"x":"' + b"y" * 3_000_000 + b'"}'},
}


async def put(gateway: Gateway, fields: dict[bytes, bytes]) -> str:
    """Add an entry with any fields; returns its id in the API.

    Partitions take turns, with ids that grow over all partitions.
    """
    lines = gateway.state.lines.clients
    entry: Any = fields
    if len(lines) == 1:
        return (await gateway.redis.xadd(gateway.keys.dead_letters, entry)).decode()
    number = next(_numbers)
    line = lines[number % len(lines)]
    dead_letter_id = f"{NOON + number}-0"
    await gateway.redis.xadd(line.keys.dead_letters, entry, id=dead_letter_id)
    return f"{dead_letter_id}.{line.number}"


async def dead(
    gateway: Gateway,
    number: int = 0,
    *,
    reason: str = EXHAUSTED,
    task: str = "chat",
    payload: Any = None,
    error: Any = None,
) -> str:
    """Add a dead letter as Sluice's scripts write it."""
    message = {
        "job_id": f"job-{number}",
        "task": task,
        "payload": json.dumps({"n": number} if payload is None else payload),
    }
    fields = {
        "reason": reason,
        "message_id": "1-1",
        "ts": "1760000000000",
        "fields": json.dumps(message),
        "job_id": message["job_id"],
        "attempts": "5",
        "first_error": '{"kind":"first"}',
        "last_error": json.dumps({"kind": "last"} if error is None else error),
    }
    return await put(gateway, {name.encode(): value.encode() for name, value in fields.items()})


async def left(gateway: Gateway) -> list[str]:
    """Ids of all dead letters, oldest first."""
    found: list[str] = []
    for line in gateway.state.lines:
        ids = [entry.decode() for entry, _ in await gateway.redis.xrange(line.keys.dead_letters)]
        suffix = f".{line.number}" if len(gateway.state.lines.clients) > 1 else ""
        found += [dead_letter_id + suffix for dead_letter_id in ids]
    return found if len(gateway.state.lines.clients) == 1 else sorted(found)


async def call(gateway: Gateway, method: str, target: str = "", body: object = None) -> Answer:
    """`method /v1/dlq<target>`; a body in bytes is sent as JSON too."""
    headers = JSON if isinstance(body, bytes) else {}
    return await gateway.client.send(method, f"/v1/dlq{target}", headers, body)
