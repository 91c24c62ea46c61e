"""The text of an API key: `sluice_<id>_<secret><checksum>`.

Prefix and checksum let secret scanners find a leaked key, and let the gateway reject a mistyped or
invented one without asking Redis. The secret has 256 random bits, so a plain digest of it is as
good as a slow one.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import zlib
from typing import NamedTuple

from sluice.common.contracts.access import KEY_PREFIX

_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
KEY_ID_LENGTH = 8
#: The smallest powers of 62 that exceed 2**256 and 2**32.
_SECRET_LENGTH, _CHECKSUM_LENGTH = 43, 6
_KEY = re.compile(
    rf"\A{KEY_PREFIX}([a-z0-9]{{{KEY_ID_LENGTH}}})_"
    rf"[0-9A-Za-z]{{{_SECRET_LENGTH}}}([0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})\Z"
)
#: The position of the id in the text.
KEY_ID_SLICE = slice(len(KEY_PREFIX), len(KEY_PREFIX) + KEY_ID_LENGTH)
KEY_ID_PATTERN = re.compile(rf"\A[a-z0-9]{{{KEY_ID_LENGTH}}}\Z")


class PresentedKey(NamedTuple):
    """A key from a request: the id that it claims, and its digest."""

    key_id: str
    digest: str


def generate_key_id() -> str:
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(KEY_ID_LENGTH))


def generate_key(key_id: str) -> str:
    """The complete text of a new key, which is shown once."""
    secret = _base62(int.from_bytes(secrets.token_bytes(32), "big"), _SECRET_LENGTH)
    body = f"{KEY_PREFIX}{key_id}_{secret}"
    return body + _checksum(body)


def key_digest(key: str) -> str:
    """The digest of a key, which is stored."""
    return hashlib.sha256(key.encode()).hexdigest()


def parse_key(text: str) -> PresentedKey | None:
    """Parse a key; None if format or checksum is invalid."""
    match = _KEY.match(text)
    if match is None or _checksum(text[:-_CHECKSUM_LENGTH]) != match[2]:
        return None
    return PresentedKey(match[1], key_digest(text))


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), _CHECKSUM_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_LETTERS[digit])
    return "".join(reversed(digits))
