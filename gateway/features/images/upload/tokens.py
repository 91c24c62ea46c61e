"""Upload tokens: who has one may bring the bytes of one image, for a while, and nothing else.

They are for phones and browsers, which get no API key: whoever creates the image hands the token
on. It is signed, not stored, and speaks for the key that created the image: a key that is revoked
takes its tokens with it, and the jobs of uploads count for it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from pydantic import SecretStr

from gateway.http.paths import image_id_in
from gateway.http.problems import Problem

HEADER: Final = "X-Upload-Token"
_HEADER: Final = HEADER.lower().encode()
_BEARER: Final = b"bearer "
_REALM: Final = 'Bearer realm="sluice"'
_VERSION: Final = "up1"
#: Version, image, end in Unix seconds, key (may be empty), signature.
_TOKEN: Final = re.compile(
    r"up1~([0-9a-f-]{36})~([0-9]{1,12})~([0-9A-Za-z_-]{0,64})~([0-9A-Za-z_-]{43})"
)


class UploadClaims(NamedTuple):
    """What a token says."""

    image_id: str
    expires_s: int
    #: Id of the API key that created the image; '' for the machine's own operator.
    key_id: str


class UploadTokens:
    """Makes and checks them, with the secret that all gateways share."""

    def __init__(self, secret: str) -> None:
        # A key of its own for this use, whatever else the secret may serve.
        self._key = hashlib.sha256(b"sluice upload token\0" + secret.encode()).digest()

    @classmethod
    def of(cls, secret: SecretStr) -> UploadTokens | None:
        """None where there is no secret, and uploads need none."""
        value = secret.get_secret_value()
        return cls(value) if value else None

    def issue(self, signed: UploadClaims) -> str:
        """The same facts make the same token."""
        said = f"{_VERSION}~{signed.image_id}~{signed.expires_s}~{signed.key_id}"
        return f"{said}~{self._signature(said)}"

    def check(self, scope_headers: Iterable[tuple[bytes, bytes]], path: str) -> UploadClaims:
        """What the token of a request says; raises where it does not let that pass."""
        token = _token_in(scope_headers)
        if not token:
            raise _refused(
                "upload_token_required",
                f"This upload needs the token that its creation answered, as `{HEADER}`.",
            )
        found = _TOKEN.fullmatch(token)
        said = token.rpartition("~")[0]
        if found is None or not hmac.compare_digest(self._signature(said), found[4]):
            raise _refused("invalid_upload_token", "The upload token is none of this gateway's.")
        signed = UploadClaims(found[1], int(found[2]), found[3])
        if signed.image_id != image_id_in(path):
            raise Problem(
                403, "upload_token_mismatch", "This upload token was made for another image."
            )
        if signed.expires_s <= time.time():
            raise _refused(
                "upload_token_expired", "The upload token has expired; create another image."
            )
        return signed

    def _signature(self, said: str) -> str:
        digest = hmac.new(self._key, said.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def key_revoked() -> Problem:
    """The key that created the image is not good any more."""
    return _refused("invalid_upload_token", "The key that this upload token speaks for is gone.")


def _token_in(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The token of a request's headers; the header of its own counts before the other."""
    found, bearers = [], []
    for name, value in headers:
        if name == _HEADER:
            found.append(value)
        elif name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            bearers.append(value[len(_BEARER) :].strip(b" "))
    shown = found or bearers
    if len(shown) > 1:
        raise _refused("invalid_upload_token", "There is more than one upload token; send one.")
    return shown[0].decode("latin-1") if shown else ""


def _refused(code: str, detail: str) -> Problem:
    return Problem(401, code, detail, headers={"WWW-Authenticate": _REALM})
