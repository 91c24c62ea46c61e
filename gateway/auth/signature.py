"""Signatures of tokens: HMAC-SHA256 in URL-safe Base64."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

#: A signature, for the pattern of a token.
SIGNATURE: Final = "([0-9A-Za-z_-]{43})"


class Signer:
    """Signs and verifies the tokens of one purpose."""

    def __init__(self, purpose: str, secret: bytes) -> None:
        # Derived, in case the secret is used for other purposes too.
        self._key = hashlib.sha256(f"sluice {purpose}\0".encode() + secret).digest()

    def sign(self, content: str) -> str:
        """The signature of a content."""
        digest = hmac.new(self._key, content.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def is_signed(self, content: str, signature: str) -> bool:
        """True if the signature is that of the content; takes the same time for all signatures.

        `signature`: ASCII.
        """
        return hmac.compare_digest(self.sign(content), signature)
