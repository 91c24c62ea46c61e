"""DeliveryReader: which webhooks have something left to tell, for whoever wants to look at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from common import codec
from common.contracts.webhooks import DeliveryField
from common.contracts.workflow import JobHash, WorkflowKeys
from common.store import read

#: Within an event's id, `{job_id}:{type}:{digest}`. No job's id has one.
_SEPARATOR: Final = ":"
_FIELDS: Final = (DeliveryField.TOKEN, DeliveryField.ATTEMPT, DeliveryField.DETAIL)


class Delivery(NamedTuple):
    """A job's webhook with something to tell, or a dead letter that is sent again."""

    job_id: str
    #: Of a letter; empty for a job's own deliveries.
    event_id: str
    url: str
    due_ms: int
    #: Events that wait to be told, this one included.
    waiting: int
    #: Attempts of the first one.
    attempts: int
    #: Whether somebody has taken it and not yet said what came of it.
    under_way: bool
    #: What became of the last attempt, JSON; empty where there was none.
    last: bytes


class DeliveryReader:
    """Reads only; workers take deliveries with the WebhookStore."""

    def __init__(self, client: Redis, keys: WorkflowKeys | None = None) -> None:
        self._client = client
        self._keys = keys or WorkflowKeys()

    async def next(self, limit: int) -> list[Delivery]:
        """Those that are due next, soonest first."""
        found: Any = await read(
            self._client.zrange(self._keys.deliveries, 0, limit - 1, withscores=True)
        )
        due = [(codec.text(name), int(score)) for name, score in found or ()]
        if not due:
            return []
        async with self._client.pipeline(transaction=False) as pipe:
            for name, _ in due:
                self._ask(pipe, name)
            replies = await read(pipe.execute(raise_on_error=False))
        return [
            _delivery(name, due_ms, replies[index * 3 : index * 3 + 3])
            for index, (name, due_ms) in enumerate(due)
        ]

    async def count(self) -> int:
        """How many there are."""
        return int(await read(self._client.zcard(self._keys.deliveries)) or 0)

    def _ask(self, pipe: Any, name: str) -> None:
        if _SEPARATOR in name:
            pipe.hget(self._keys.letters, name)
            pipe.llen(self._keys.redrives(name.partition(_SEPARATOR)[0]))
        else:
            pipe.hget(self._keys.job(name), JobHash.WEBHOOK_URL.value)
            pipe.llen(self._keys.outbox(name))
        pipe.hmget(self._keys.delivery(name), [field.value for field in _FIELDS])


def _delivery(name: str, due_ms: int, replies: Sequence[Any]) -> Delivery:
    """From three replies; what a foreign hand has made of a key counts as nothing."""
    raw, waiting, state = replies
    job_id, separator, _ = name.partition(_SEPARATOR)
    token, attempts, detail = state if isinstance(state, list) else (None, None, None)
    # Of a letter it is `id status ms url`; a URL has no blanks.
    url = codec.text(raw).rpartition(" ")[2] if isinstance(raw, bytes) else ""
    return Delivery(
        job_id,
        name if separator else "",
        url,
        due_ms,
        waiting if isinstance(waiting, int) else 0,
        codec.integer(attempts or b""),
        bool(token),
        _last_of(detail or b""),
    )


def _last_of(detail: bytes) -> bytes:
    """The last of JSON objects that are separated by commas."""
    try:
        attempts = codec.loads(b"[%s]" % detail)
    except ValueError:
        return b""
    return codec.dumps(attempts[-1]) if attempts else b""
