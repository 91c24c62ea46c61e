"""TLS to Redis: options of a URL, shared contexts, and the causes of failed handshakes."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from redis import exceptions
from redis.asyncio.connection import AbstractConnection, RedisSSLContext, SSLConnection

#: Options of redis-py that name a file.
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
#: Options that may follow a `rediss` URL, by their names in redis-py.
OPTIONS: Final = (
    *_FILES,
    "ssl_ca_path",
    "ssl_ca_data",
    "ssl_password",
    "ssl_cert_reqs",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_include_verify_flags",
    "ssl_exclude_verify_flags",
)
_FIELDS: Final = tuple(name for name in RedisSSLContext.__slots__ if name != "context")
#: Contexts of one process; there is one for each URL, and one more after a file has changed.
_CONTEXTS_MAX = 16

#: Verify codes of OpenSSL: a certificate outside its time of validity, or of another host.
_OUTDATED = (9, 10)
_OTHER_HOST = (62, 64)
#: Parts of OpenSSL's messages: the server rejects the client, or does not use TLS.
_CLIENT_REJECTED = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE", "UNKNOWN_CA")
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
#: Errors if the server closes the connection; which of them depends on the time.
_CLOSED = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError)
#: Messages of redis-py.
_CLOSED_MESSAGE = "Connection closed by server"
#: A server without TLS waits for the end of a line that never comes.
_CONNECT_TIMEOUT = "Timeout connecting to server"
_NAME_CLIENT = "name a client certificate with `ssl_certfile=` and `ssl_keyfile=` in the URL"


def validate_options(options: Mapping[str, Any]) -> None:
    """Raise ValueError if a certificate file or another TLS option cannot be used.

    `options` are those of redis-py's `parse_url`. Reads the files.
    """
    given = {name: value for name, value in options.items() if name.startswith("ssl_")}
    uses_tls = options.get("connection_class") is SSLConnection
    for name in given:
        if name not in OPTIONS:
            raise ValueError(f"has an unknown TLS option; valid ones are {', '.join(OPTIONS)}")
        if not uses_tls:
            raise ValueError(f"has the option {name}, which needs rediss://")
    for name in _FILES:
        if name in given:
            _check_file(name, given[name])
    if not uses_tls:
        return
    try:
        shared_context(SSLConnection(**given).ssl_context)
    except (OSError, ValueError, exceptions.RedisError) as error:
        raise ValueError(f"has TLS options that cannot be used: {error}") from None


def _check_file(name: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ValueError(f"has {name}={path}, which cannot be read: {error.strerror}") from None


_contexts: dict[object, ssl.SSLContext] = {}


def shared_context(options: RedisSSLContext) -> ssl.SSLContext:
    """A context that all connections with these options share.

    redis-py makes one for each connection, which blocks the event loop for tens of milliseconds
    while it loads the system's CAs. Changed certificate files are read again.
    """
    files = (options.keyfile, options.certfile, options.ca_certs)
    fields = tuple(_hashable(getattr(options, name)) for name in _FIELDS)
    key = (fields, tuple(os.stat(path).st_mtime_ns for path in files if path))
    context = _contexts.get(key)
    if context is None:
        context = options.get()
        while len(_contexts) >= _CONTEXTS_MAX:
            _contexts.pop(next(iter(_contexts)), None)
        _contexts[key] = context
    return context


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


@lru_cache
def with_shared_context(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """A connection class whose TLS connections share their context; others are unchanged."""
    if not issubclass(kind, SSLConnection):
        return kind

    class SharedContextConnection(kind):  # type: ignore[misc, valid-type]
        async def _connect(self) -> None:
            self.ssl_context.context = None
            self.ssl_context.context = shared_context(self.ssl_context)
            await super()._connect()

    return SharedContextConnection


class TlsProblem(NamedTuple):
    """Why a connection by TLS failed, and the fix."""

    cause: str
    fix: str
    #: True if only a change of the settings or of a certificate helps.
    permanent: bool = False


def tls_problem(url: str, error: BaseException) -> TlsProblem | None:
    """The TLS problem behind a failed connection to `url`; None if TLS is not the cause."""
    causes = tuple(_causes(error))
    text = " ".join(map(str, causes))
    is_closed = _CLOSED_MESSAGE in text or any(isinstance(cause, _CLOSED) for cause in causes)
    if not url.startswith("rediss"):
        if is_closed and url.startswith("redis"):
            return TlsProblem(
                "the server closed the connection at the first command",
                "write rediss instead of redis in the URL if this port uses TLS",
            )
        return None
    rejected = certificate_error(error)
    if rejected is not None:
        return _untrusted(rejected)
    if any(part in text for part in _CLIENT_REJECTED):
        return TlsProblem("the server requires a client certificate that it trusts", _NAME_CLIENT)
    if any(part in text for part in (*_NOT_TLS, _CONNECT_TIMEOUT)):
        return TlsProblem(
            f"no TLS handshake ({error})",
            "check that the server is reachable, and write redis instead of rediss in the URL if "
            "this port does not use TLS",
        )
    if is_closed:
        return TlsProblem(
            "the server closed the connection during the TLS handshake",
            f"{_NAME_CLIENT} if the server requires one (tls-auth-clients)",
        )
    return None


def certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """The failed verification of a server's certificate that caused an error."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause
    return None


def _untrusted(error: ssl.SSLCertVerificationError) -> TlsProblem:
    cause = f"the certificate of Redis is not trusted: {error.verify_message}"
    if error.verify_code in _OUTDATED:  # the clock may still be wrong after a start
        return TlsProblem(cause, "renew the certificate, or correct the clock of this machine")
    if error.verify_code in _OTHER_HOST:
        fix = "use a host of the certificate in the URL, or add this host to the certificate"
        return TlsProblem(cause, fix, permanent=True)
    fix = "name the CA that signed it with `ssl_ca_certs=/path/ca.pem` in the URL"
    return TlsProblem(cause, fix, permanent=True)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and the errors that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
