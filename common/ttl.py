"""The TTL rule of the contract: whole seconds between one second and thirty days."""

from __future__ import annotations

from common.contracts.jobs import TTL_MAX_S, TTL_MIN_S


def ttl_or_default(raw: object, default_s: int) -> int:
    """The TTL that a job hash names, or the default where it names nonsense.

    `EXPIRE 0` deletes a job, so a bad value must never reach Redis.
    """
    try:
        ttl_s = int(raw)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return default_s
    return ttl_s if TTL_MIN_S <= ttl_s <= TTL_MAX_S else default_s
