"""KeyStore: reads and writes API keys, for the gateway and `sluice key`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import WatchError

from sluice.common import codec
from sluice.common.access.key_format import generate_key, generate_key_id, key_digest
from sluice.common.access.record import AccessRecord, InvalidKeySpec, KeySecret, KeySpec
from sluice.common.contracts.access import AccessKeys
from sluice.common.errors import CorruptKey, StoreUnavailable
from sluice.common.jobs.store import read_reply

#: Default time that the old secret of a rotated key stays valid, in seconds.
DEFAULT_ROTATION_GRACE_S = 24 * 3600
LONGEST_GRACE_S = 30 * 24 * 3600
#: Maximum number of keys.
MOST_KEYS = 1000
#: Length of the secret of read tokens.
TOKEN_SECRET_BYTES = 32
#: Attempts of a change while other processes change keys.
_TRIES = 16


class IssuedKey(NamedTuple):
    """A new key with its text, which cannot be shown again."""

    record: AccessRecord
    key: str


class TooManyKeys(InvalidKeySpec):
    """The limit of keys is reached."""

    def __init__(self) -> None:
        super().__init__(f"there are {MOST_KEYS} keys, which is the limit; revoke one first")


class KeyStore:
    """The only code that reads and writes API keys."""

    def __init__(self, client: Redis, keys: AccessKeys | None = None) -> None:
        self._client = client
        self.keys = keys or AccessKeys()

    # -- reading ---------------------------------------------------------------------------

    async def find(self, key_ids: Sequence[str]) -> list[AccessRecord | None]:
        """The records of some keys, in one round trip; None if a record is missing or invalid."""
        command: Any = self._client.hmget(self.keys.records, list(key_ids))
        found = self._require_hash(await read_reply(command))
        return [
            None if raw is None else AccessRecord.from_json(key_id, raw)
            for key_id, raw in zip(key_ids, found)
        ]

    async def get(self, key_id: str) -> AccessRecord | None:
        return (await self.find([key_id]))[0]

    async def list(self) -> list[AccessRecord]:
        """All valid records, oldest first."""
        command: Any = self._client.hgetall(self.keys.records)
        stored = self._require_hash(await read_reply(command))
        records = (
            AccessRecord.from_json(codec.decode_text(name), raw) for name, raw in stored.items()
        )
        known = [record for record in records if record is not None]
        return sorted(known, key=lambda record: (record.created_ms, record.key_id))

    async def last_used(self) -> dict[str, int]:
        """When each key was last used, in Unix milliseconds; accurate to about a minute."""
        command: Any = self._client.hgetall(self.keys.last_used)
        stored = await read_reply(command) or {}
        return {codec.decode_text(name): codec.parse_int(raw) for name, raw in stored.items()}

    async def token_secret(self) -> bytes | None:
        """The secret with which all gateways sign read tokens; None without a valid one."""
        command: Any = self._client.get(self.keys.token_secret)
        secret: bytes | None = await read_reply(command)
        return None if secret is None or len(secret) < TOKEN_SECRET_BYTES else secret

    # -- changing --------------------------------------------------------------------------

    async def create(self, spec: KeySpec, key_id: str | None = None) -> IssuedKey:
        counting: Any = self._client.hlen(self.keys.records)
        if self._require_hash(await read_reply(counting)) >= MOST_KEYS:
            raise TooManyKeys
        chosen = key_id or generate_key_id()
        key = generate_key(chosen)
        record = AccessRecord.from_spec(chosen, spec, key_digest(key), _now_ms())
        adding: Any = self._client.hsetnx(self.keys.records, chosen, record.to_json())  # type: ignore[arg-type]
        if not self._require_hash(await read_reply(adding)):
            raise StoreUnavailable("the id of the new key is taken; try again")
        return IssuedKey(record, key)

    async def create_token_secret(self) -> bytes:
        """The secret of read tokens; a new one if there is none yet."""
        adding: Any = self._client.set(
            self.keys.token_secret, secrets.token_bytes(TOKEN_SECRET_BYTES), nx=True
        )
        await read_reply(adding)
        secret = await self.token_secret()
        if secret is None:
            raise CorruptKey(f"{self.keys.token_secret} is not a secret")
        return secret

    async def rotate(
        self, key_id: str, grace_s: float = DEFAULT_ROTATION_GRACE_S
    ) -> IssuedKey | None:
        """Create a new secret; the newest old one stays valid for `grace_s`. None if there is no
        such key."""
        key = generate_key(key_id)

        def change(record: AccessRecord) -> AccessRecord:
            now_ms = _now_ms()
            until_ms = now_ms + round(grace_s * 1000)
            old = record.secrets[0]._replace(until_ms=until_ms) if record.secrets else None
            kept = (old,) if old is not None and grace_s > 0 else ()
            return replace(record, secrets=(KeySecret(key_digest(key)), *kept))

        record = await self._change(key_id, change)
        return None if record is None else IssuedKey(record, key)

    async def revoke(self, key_id: str) -> bool:
        """Delete a key and the state of its limits; False if it does not exist."""
        keys = self.keys
        # Not a transaction: a Redis that is out of memory refuses it.
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.hdel(keys.records, key_id)
            pipe.hdel(keys.last_used, key_id)
            pipe.delete(keys.rate(key_id), keys.active(key_id))
            removed, *_ = await read_reply(pipe.execute(raise_on_error=False))
        if isinstance(removed, Exception):
            raise CorruptKey(f"{keys.records} is not a hash of keys") from removed
        return bool(removed)  # the key is gone, even if its state could not be deleted

    async def record_use(self, key_id: str, now_ms: int) -> None:
        command: Any = self._client.hset(self.keys.last_used, key_id, str(now_ms))
        await read_reply(command)

    async def _change(
        self, key_id: str, change: Callable[[AccessRecord], AccessRecord]
    ) -> AccessRecord | None:
        """Read, change and write with optimistic locking."""
        for _ in range(_TRIES):
            async with self._client.pipeline(transaction=True) as pipe:
                await read_reply(pipe.watch(self.keys.records))
                reading: Awaitable[Any] = pipe.hget(self.keys.records, key_id)  # type: ignore[assignment]
                raw = await read_reply(reading)
                record = None if raw is None else AccessRecord.from_json(key_id, raw)
                if record is None:
                    return None
                changed = change(record)
                pipe.multi()  # type: ignore[no-untyped-call]
                pipe.hset(self.keys.records, key_id, changed.to_json())  # type: ignore[arg-type]
                try:
                    await pipe.execute()
                except WatchError:
                    continue
                except Exception as error:
                    raise StoreUnavailable(str(error)) from error
                return changed
        raise StoreUnavailable("too many concurrent changes of keys; try again")

    def _require_hash(self, reply: Any) -> Any:
        """A reply; raises CorruptKey if the key has the wrong type: access is then denied."""
        if reply is None:
            raise CorruptKey(f"{self.keys.records} is not a hash of keys")
        return reply


def _now_ms() -> int:
    return int(time.time() * 1000)
