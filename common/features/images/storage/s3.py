"""Processed images in a bucket of S3, or of a server that speaks like it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from common.contracts.images import STORAGE_PREFIX
from common.errors import SettingsError
from common.features.images.storage.base import (
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
#: Threads that may ask at once.
_CONNECTIONS: Final = 32
_ABSENT: Final = ("NoSuchKey", "404", "NotFound")
#: Who may not list a bucket is told this of an object that is not there.
_PERHAPS_ABSENT: Final = (*_ABSENT, "403", "AccessDenied")
#: What a server says that knows no conditions.
_UNKNOWN: Final = "NotImplemented"
#: Answers that another try does not change, and what a person can do about them.
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
    """Which bucket, and who asks for it; empty for what the machine says otherwise."""

    name: str
    region: str = "us-east-1"
    endpoint: str = ""
    key_id: str = ""
    secret: str = ""


class S3Storage:
    """One object of the bucket each. Calls are made in threads, by a client made at the first."""

    name = "s3"

    def __init__(self, bucket: Bucket, sleep: Sleep = asyncio.sleep) -> None:
        self._bucket = bucket
        self._sleep = sleep
        self._made: Any = None
        self._making = asyncio.Lock()

    async def put(
        self, key: str, data: bytes, content_type: str, may: ReplaceCheck | None = None
    ) -> StoredObject:
        """One request; the server refuses what was changed on the way (Content-MD5)."""
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
        """The object as it is now."""
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
        """A presigned URL: good for a while, for this object only."""
        named = self._named(key)
        return await self._ask(
            lambda client: str(
                client.generate_presigned_url("get_object", Params=named, ExpiresIn=seconds)
            )
        )

    async def delete(self, key: str) -> None:
        """S3 answers the same whether there was one or not."""
        named = self._named(key)
        await self._patiently(lambda client: client.delete_object(**named))

    async def check(self) -> None:
        """Write a small object among the images and delete it again."""
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
            # Tries are ours to count. Buckets of others know no checksums but MD5, and no names
            # of hosts for each bucket.
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
        except Exception as error:  # of boto3, botocore and urllib3, which share no base
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
                f"nobody says who may use {bucket}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        if kind in ("EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError"):
            return TransientStorageError(
                f"{bucket} cannot be reached ({error}); see that the server runs and that "
                "IMAGE_S3_ENDPOINT is its URL"
            )
        return TransientStorageError(f"{bucket} could not do it: {code or kind}: {error}"[:500])


def _unchanged(client: Any, named: dict[str, str]) -> dict[str, str]:
    """The condition that nobody has replaced an object since now."""
    from botocore.exceptions import ClientError

    try:
        return {"IfMatch": str(client.head_object(**named)["ETag"])}
    except ClientError as error:
        if _code(error) in _PERHAPS_ABSENT:
            return {"IfNoneMatch": "*"}
        raise


def _put(client: Any, sent: dict[str, Any], condition: dict[str, str]) -> StoredObject:
    """Where the server refuses for the condition, another try asks anew."""
    from botocore.exceptions import ClientError

    try:
        answer = client.put_object(**sent, **condition)
    except ClientError as error:
        if not condition or _code(error) != _UNKNOWN:
            raise
        answer = client.put_object(**sent)
    return StoredObject(str(answer["ETag"]).strip('"'), len(sent["Body"]))


def _code(error: Exception) -> str:
    """Code of an answer such as `NoSuchKey`; '' where there was no answer."""
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""
