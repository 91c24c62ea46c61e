"""Locates the model server: MODEL_URL, or the one announced by `sluice model serve`."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from sluice.common import codec
from sluice.common.contracts.models import MODEL_FILE, ModelFileField
from sluice.common.errors import SettingsError

if TYPE_CHECKING:
    from pydantic import SecretStr

log = logging.getLogger(__name__)

#: A removed announcement stays valid this long, because the server may be restarting.
RESTART_GRACE_S = 30.0
#: Most bytes read of an announcement.
MOST_BYTES = 64 * 1024
_VERSION = "/v1"
_FileVersion = tuple[int, int, int]


@dataclass(frozen=True)
class Endpoint:
    """A server with an OpenAI-compatible API."""

    #: URL without credentials, `/v1` and trailing slash; safe to display.
    base: str
    #: Name of the model to request, if known beforehand.
    model: str = ""
    #: Prefix of the settings of this server, for messages.
    setting: str = "MODEL"
    #: Sent with every request; contains credentials and is never shown.
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    #: The credential itself, to mask it in messages of the server.
    secret: str = field(default="", repr=False)

    def url(self, path: str) -> str:
        """URL of a path such as `/health`."""
        return f"{self.base}{path}"

    def api(self, path: str) -> str:
        """URL of an API path such as `/chat/completions`."""
        return f"{self.base}{_VERSION}{path}"


def parse_endpoint(
    url: str, key: SecretStr | None = None, model: str = "", setting: str = "MODEL"
) -> Endpoint:
    """Parse a URL with or without `/v1`. Raises ValueError or SettingsError."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is not the URL of a model server; example: http://127.0.0.1:8090")
    path = parts.path.rstrip("/")
    if path.endswith(_VERSION):
        path = path[: -len(_VERSION)].rstrip("/")
    host = parts.netloc.rpartition("@")[2]
    base = urlunsplit((parts.scheme, host, path, "", ""))
    secret = key.get_secret_value().strip() if key is not None else ""
    if secret:
        if not (secret.isascii() and secret.isprintable()):
            raise SettingsError(f"{setting}_API_KEY must be one line of printable ASCII")
        return Endpoint(base, model, setting, {"Authorization": f"Bearer {secret}"}, secret)
    if parts.username is not None:
        password = unquote(parts.password or "")
        both = f"{unquote(parts.username)}:{password}".encode()
        basic = base64.b64encode(both).decode()
        return Endpoint(base, model, setting, {"Authorization": f"Basic {basic}"}, password)
    return Endpoint(base, model, setting)


class EndpointLocator:
    """Returns the current server; checks the announcement file on each call."""

    def __init__(
        self,
        url: str | None,
        directory: str,
        *,
        key: SecretStr | None = None,
        model: str = "",
        setting: str = "MODEL",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key
        self._model = model
        self._clock = clock
        self.setting = setting
        self._fixed = None if url is None else parse_endpoint(url, key, model, setting)
        self._file = Path(directory) / MODEL_FILE
        self._file_version: _FileVersion | None = None
        self._announced: Endpoint | None = None
        self._missing_since: float | None = None

    def find(self) -> Endpoint | None:
        """The current server, or None."""
        if self._fixed is not None:
            return self._fixed
        version = self._stat_file()
        if version is None:
            return self._handle_missing_file()
        self._missing_since = None
        if version != self._file_version:
            self._file_version = version
            self._announced = self._read() or self._announced
        return self._announced

    def _stat_file(self) -> _FileVersion | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _handle_missing_file(self) -> Endpoint | None:
        """No server is announced. Keeps the last one during RESTART_GRACE_S."""
        self._file_version = None
        if self._announced is not None:
            now = self._clock()
            if self._missing_since is None:
                self._missing_since = now
            elif now - self._missing_since >= RESTART_GRACE_S:
                self._announced = self._missing_since = None
        return self._announced

    def _read(self) -> Endpoint | None:
        try:
            with self._file.open("rb") as stream:
                announcement: Any = codec.loads(stream.read(MOST_BYTES))
            model = announcement.get(ModelFileField.MODEL)
            name = self._model or (model if isinstance(model, str) else "")
            return parse_endpoint(announcement[ModelFileField.URL], self._key, name, self.setting)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("%s is not a valid announcement of a model: %s", self._file, error)
            return None
