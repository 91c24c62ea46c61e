"""Storage of processed images in an S3 bucket, or on an S3-compatible server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sluice.common.contracts.images import STORAGE_PREFIX
from sluice.common.errors import SettingsError
from sluice.common.features.images.storage.base import (
    ObjectContent,
    ReplaceCheck,
    Sleep,
    StorageError,
    StoredObject,
    TransientStorageError,
    retry_transient,
    validate_storage_key,
)

_CHUNK_BYTES: Final = 256 * 1024
_CONNECT_S: Final = 5
_READ_S: Final = 30
#: Maximum number of parallel requests.
_CONNECTIONS: Final = 32
_ABSENT: Final = ("NoSuchKey", "404", "NotFound")
#: Without permission to list the bucket, S3 reports a missing object like this.
_PERHAPS_ABSENT: Final = (*_ABSENT, "403", "AccessDenied")
#: Error of a server that does not support conditional requests.
_UNKNOWN: Final = "NotImplemented"
#: Permanent errors and their remedies.
_REMEDIES: Final = {
    "NoSuchBucket": "make the bucket, or set IMAGE_S3_BUCKET to one that exists",
    "InvalidBucketName": "set IMAGE_S3_BUCKET to the name of a bucket",
    "AccessDenied": "let the key read, write and delete objects of the bucket",
    "403": "let the key read, write and delete objects of the bucket",
    "InvalidAccessKeyId": "set AWS_ACCESS_KEY_ID to a key that the server knows",
    "SignatureDoesNotMatch": "set AWS_SECRET_ACCESS_KEY to the secret of AWS_ACCESS_KEY_ID",
    "PermanentRedirect": "set IMAGE_S3_REGION to the region of the bucket",
    "AuthorizationHeaderMalformed": "set IMAGE_S3_REGION to the region of the bucket",
}
_EXTRA: Final = "IMAGE_STORE=s3 needs the package boto3: install sluice[s3]"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Bucket:
    """Bucket and credentials; empty values are taken from the environment of boto3."""

    name: str
    region: str = "us-east-1"
    endpoint: str = ""
    key_id: str = ""
    secret: str = ""


class S3Storage:
    """One object per image. Requests run in threads; the client is created on first use."""

    name = "s3"

    def __init__(self, bucket: Bucket, sleep: Sleep = asyncio.sleep) -> None:
        self._bucket = bucket
        self._sleep = sleep
        self._made: Any = None
        self._making = asyncio.Lock()

    async def put(
        self, key: str, data: bytes, content_type: str, may: ReplaceCheck | None = None
    ) -> StoredObject:
        """Store with one request; the server rejects corrupted data (Content-MD5)."""
        md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        named = self._named(key)
        sent = {**named, "Body": data, "ContentType": content_type, "ContentMD5": md5}

        async def put() -> StoredObject:
            unchanged: dict[str, str] = {}
            if may is not None:
                unchanged = await self._ask(lambda client: _unchanged(client, named))
                await may()
            return await self._ask(lambda client: _put(client, sent, unchanged))

        return await retry_transient(put, self._sleep)

    async def read(self, key: str) -> ObjectContent | None:
        named = self._named(key)

        def opened(client: Any) -> ObjectContent | None:
            from botocore.exceptions import ClientError

            try:
                answer = client.get_object(**named)
            except ClientError as error:
                if _code(error) in _ABSENT:
                    return None
                raise
            return ObjectContent(int(answer["ContentLength"]), self._chunks(answer["Body"]))

        return await self._patiently(opened)

    async def url(self, key: str, seconds: int) -> str | None:
        """A presigned URL: valid for a while, for this object only."""
        named = self._named(key)
        return await self._ask(
            lambda client: str(
                client.generate_presigned_url("get_object", Params=named, ExpiresIn=seconds)
            )
        )

    async def delete(self, key: str) -> None:
        """Delete an object; S3 gives the same answer whether it existed or not."""
        named = self._named(key)
        await self._patiently(lambda client: client.delete_object(**named))

    async def check(self) -> None:
        """Write a small object next to the images and delete it."""
        named = self._named(f"{STORAGE_PREFIX}check-{secrets.token_hex(8)}")

        def probe(client: Any) -> None:
            client.put_object(**named, Body=b"")
            client.delete_object(**named)

        await self._ask(probe)

    async def close(self) -> None:
        if self._made is not None:
            await asyncio.to_thread(self._made.close)

    def _named(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket.name, "Key": validate_storage_key(key)}

    async def _chunks(self, body: Any) -> AsyncIterator[bytes]:
        try:
            while chunk := await self._in_thread(lambda: bytes(body.read(_CHUNK_BYTES))):
                yield chunk
        finally:
            body.close()

    async def _patiently(self, function: Callable[[Any], Result]) -> Result:
        return await retry_transient(lambda: self._ask(function), self._sleep)

    async def _ask(self, function: Callable[[Any], Result]) -> Result:
        async with self._making:
            if self._made is None:
                self._made = await self._in_thread(self._client)
        client = self._made
        return await self._in_thread(lambda: function(client))

    def _client(self) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise SettingsError(_EXTRA) from None

        bucket = self._bucket
        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            max_pool_connections=_CONNECTIONS,
            # Retries are counted in this module. S3-compatible servers may support no checksums
            # except MD5, and no virtual-hosted buckets.
            retries={"total_max_attempts": 1, "mode": "standard"},
            signature_version="s3v4",
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if bucket.endpoint else "auto"},
        )
        return boto3.session.Session().client(
            "s3",
            region_name=bucket.region,
            endpoint_url=bucket.endpoint or None,
            aws_access_key_id=bucket.key_id or None,
            aws_secret_access_key=bucket.secret or None,
            aws_session_token=os.environ.get("AWS_SESSION_TOKEN") if bucket.key_id else None,
            config=config,
        )

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        try:
            return await asyncio.to_thread(function)
        except SettingsError:
            raise
        except Exception as error:  # boto3, botocore and urllib3 have no common base class
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> StorageError:
        bucket = f"the bucket {self._bucket.name}"
        if self._bucket.endpoint:
            bucket += f" at {self._bucket.endpoint}"
        code = _code(error)
        kind = type(error).__name__
        if code in _REMEDIES:
            return StorageError(f"{bucket} refuses ({code}); {_REMEDIES[code]}")
        if kind in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
            return StorageError(
                f"no credentials for {bucket}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        if kind in ("EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError"):
            return TransientStorageError(
                f"{bucket} cannot be reached ({error}); check that the server is running and that "
                "IMAGE_S3_ENDPOINT is its URL"
            )
        return TransientStorageError(f"request to {bucket} failed: {code or kind}: {error}"[:500])


def _unchanged(client: Any, named: dict[str, str]) -> dict[str, str]:
    """The condition that the object was not replaced since now."""
    from botocore.exceptions import ClientError

    try:
        return {"IfMatch": str(client.head_object(**named)["ETag"])}
    except ClientError as error:
        if _code(error) in _PERHAPS_ABSENT:
            return {"IfNoneMatch": "*"}
        raise


def _put(client: Any, sent: dict[str, Any], condition: dict[str, str]) -> StoredObject:
    """Store an object; if the condition fails, the next try reads it again."""
    from botocore.exceptions import ClientError

    try:
        answer = client.put_object(**sent, **condition)
    except ClientError as error:
        if not condition or _code(error) != _UNKNOWN:
            raise
        answer = client.put_object(**sent)
    return StoredObject(str(answer["ETag"]).strip('"'), len(sent["Body"]))


def _code(error: Exception) -> str:
    """The error code of a response, such as `NoSuchKey`; '' if there was no response."""
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""
