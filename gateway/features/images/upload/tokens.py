"""Upload tokens: each permits the upload of one image for a limited time.

They are for phones and browsers, which have no API key: the server that creates the image passes
the token on. A token is signed, not stored, and acts for the key that created the image: revoking
the key revokes its tokens, and the jobs of uploads count against its limits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from pydantic import SecretStr

from sluice.gateway.auth.signature import SIGNATURE, Signer
from sluice.gateway.http.paths import image_id_in
from sluice.gateway.http.problems import Problem

HEADER: Final = "X-Upload-Token"
_HEADER: Final = HEADER.lower().encode()
_BEARER: Final = b"bearer "
_REALM: Final = 'Bearer realm="sluice"'
_VERSION: Final = "up1"
#: Version, image, expiry in Unix seconds, key (may be empty), signature.
_TOKEN: Final = re.compile(r"up1~([0-9a-f-]{36})~([0-9]{1,12})~([0-9A-Za-z_-]{0,64})~" + SIGNATURE)


class UploadClaims(NamedTuple):
    """The content of a token."""

    image_id: str
    expires_s: int
    #: Id of the API key that created the image; '' for a local caller without a key.
    key_id: str


class UploadTokens:
    """Issues and checks tokens, with the secret that all gateways share."""

    def __init__(self, secret: str) -> None:
        self._signer = Signer("upload token", secret.encode())

    @classmethod
    def of(cls, secret: SecretStr) -> UploadTokens | None:
        """None if there is no secret: then uploads need no token."""
        value = secret.get_secret_value()
        return cls(value) if value else None

    def issue(self, signed: UploadClaims) -> str:
        """The token of these claims; equal for equal claims."""
        content = f"{_VERSION}~{signed.image_id}~{signed.expires_s}~{signed.key_id}"
        return f"{content}~{self._signer.sign(content)}"

    def check(self, scope_headers: Iterable[tuple[bytes, bytes]], path: str) -> UploadClaims:
        """The claims of a request's token; raises the problem of an invalid one."""
        token = _token_in(scope_headers)
        if not token:
            raise _refused(
                "upload_token_required",
                f"This upload needs the upload token of the image in the header `{HEADER}`.",
            )
        found = _TOKEN.fullmatch(token)
        content = token.rpartition("~")[0]
        if found is None or not self._signer.is_signed(content, found[4]):
            raise _refused("invalid_upload_token", "The upload token is not valid.")
        signed = UploadClaims(found[1], int(found[2]), found[3])
        if signed.image_id != image_id_in(path):
            raise Problem(403, "upload_token_mismatch", "This upload token is for another image.")
        if signed.expires_s <= time.time():
            raise _refused(
                "upload_token_expired", "The upload token has expired; create another image."
            )
        return signed


def key_revoked() -> Problem:
    """The key that created the image was revoked or has expired."""
    return _refused(
        "invalid_upload_token", "The API key behind this upload token was revoked or has expired."
    )


def _token_in(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The token in the headers; X-Upload-Token takes precedence over Authorization."""
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
