"""Finds the Redis to use, and masks the password in its URL."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from redis import RedisError
from redis.asyncio.connection import parse_url

from sluice.common.errors import NoRedisServer
from sluice.common.process.embedded_redis import EmbeddedRedis
from sluice.common.redis.addresses import is_multi_host, parse_address
from sluice.common.redis.locator import locate_sync

#: File with the administrator's URL, written by the installer and readable by root only.
ADMIN_URL_FILE = "etc/sluice/credentials/admin.redis_url"
#: The systemd credential of Sluice's units.
CREDENTIAL = "redis_url"
DATA_DIR = ".sluice"
PRIVATE_SOURCE = "the private Redis under"
_PASSWORD_OPTION = re.compile(r"([?&](?:sentinel_|ssl_)?password=)[^&]*", re.IGNORECASE)
#: Options of redis-cli for certificates, by option of the URL.
_CLI_FLAGS = {"ssl_ca_certs": "--cacert", "ssl_certfile": "--cert", "ssl_keyfile": "--key"}
_LOCAL_HOSTS = ("", "localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """A Redis URL and its origin."""

    url: str
    source: str

    @property
    def masked_url(self) -> str:
        return mask_password(self.url)

    @property
    def _single_url(self) -> str:
        """The URL of one server; with several hosts, that of the current master."""
        if not is_multi_host(self.url):
            return self.url
        address = parse_address(self.url)
        try:
            return address.data_url(locate_sync(address))
        except (RedisError, OSError):
            return address.data_url(address.seeds[0])

    @property
    def address(self) -> str:
        """Host and port of the server, or the path of its socket."""
        parts = urlsplit(self._single_url)
        return unquote(parts.path) if parts.scheme == "unix" else parts.netloc.rpartition("@")[2]

    @property
    def socket_path(self) -> str | None:
        """Path of the unix socket; None for TCP."""
        parts = urlsplit(self._single_url)
        return unquote(parts.path) if parts.scheme == "unix" else None

    @property
    def is_private(self) -> bool:
        """True for the private Redis that Sluice starts if none is configured."""
        return self.source.startswith(PRIVATE_SOURCE)

    @property
    def is_local(self) -> bool:
        parts = urlsplit(self._single_url)
        return parts.scheme == "unix" or (parts.hostname or "") in _LOCAL_HOSTS

    @property
    def cli(self) -> str:
        """The redis-cli command for this server; it prompts for the password."""
        parts = urlsplit(self._single_url)
        words = ["redis-cli"]
        if parts.scheme == "unix":
            words += ["-s", unquote(parts.path)]
        else:
            if parts.hostname not in (None, "127.0.0.1", "localhost"):
                words += ["-h", str(parts.hostname)]
            if parts.port not in (None, 6379):
                words += ["-p", str(parts.port)]
            if parts.scheme == "rediss":
                words.append("--tls")
        query = parse_qs(parts.query)
        for option, flag in _CLI_FLAGS.items():
            words += [word for value in query.get(option, ()) for word in (flag, value)]
        if query.get("ssl_cert_reqs") == ["none"]:
            words.append("--insecure")
        user = parts.username or query.get("username", [""])[0]
        if user:
            words += ["--user", unquote(user)]
        if parts.password or "password" in query:
            words.append("--askpass")
        return shlex.join(words)


def mask_password(url: str) -> str:
    """A URL with its password masked. Text that is not a URL is hidden completely."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "(not a URL)"
    authority, slash, path = rest.partition("/")
    user_info, at, host = authority.rpartition("@")
    if ":" in user_info:
        user_info = f"{user_info.partition(':')[0]}:***"
    path = _PASSWORD_OPTION.sub(r"\1***", path)
    return f"{scheme}://{user_info}{at}{host}{slash}{path}"


def is_url(text: str) -> bool:
    try:
        if is_multi_host(text):
            return bool(parse_address(text).seeds)
        port = parse_url(text).get("port", 6379)
    except ValueError:
        return False
    return 0 < port < 65536


def find_target(
    explicit: str | None, environ: Mapping[str, str], root: Path = Path("/")
) -> RedisTarget | None:
    """The first of: `explicit`, REDIS_URL, credential, installer's file, running private Redis."""
    if explicit:
        return RedisTarget(explicit, "--redis")
    if url := environ.get("REDIS_URL", "").strip():
        return RedisTarget(url, "REDIS_URL")
    directory = environ.get("CREDENTIALS_DIRECTORY")
    if directory and (url := _first_line(Path(directory) / CREDENTIAL)):
        return RedisTarget(url, f"the credential {CREDENTIAL}")
    if url := _first_line(root / ADMIN_URL_FILE):
        return RedisTarget(url, f"/{ADMIN_URL_FILE}")
    return _embedded(environ)


def _embedded(environ: Mapping[str, str]) -> RedisTarget | None:
    directory = Path(environ.get("SLUICE_DATA_DIR") or DATA_DIR)
    try:
        if not (directory / "redis" / "users.lock").exists():
            return None
        server = EmbeddedRedis(directory)
        if not server.socket_path.exists():
            return None
    except (OSError, NoRedisServer):
        return None
    return RedisTarget(server.url, f"{PRIVATE_SOURCE} {directory}")


def _first_line(path: Path) -> str:
    try:
        lines = path.read_text().split()
    except (OSError, UnicodeDecodeError):
        return ""
    return lines[0] if lines else ""
