"""Where the model is: MODEL_URL, or what `sluice model serve` announces."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from common import codec
from common.contracts.models import MODEL_FILE, ModelFileField
from common.errors import SettingsError

if TYPE_CHECKING:
    from pydantic import SecretStr

log = logging.getLogger(__name__)

#: A file that goes away counts so long as a server that is just started again.
RESTART_GRACE_S = 30.0
#: An announcement is short; more is none of ours.
MOST_BYTES = 64 * 1024
_VERSION = "/v1"
_FileVersion = tuple[int, int, int]


@dataclass(frozen=True)
class Endpoint:
    """A server that speaks OpenAI's dialect."""

    #: Without credentials, `/v1` and a slash at the end: this one may be shown.
    base: str
    #: The model it is to be asked for, where that is known beforehand.
    model: str = ""
    #: What its settings begin with, for those who are told to look at them.
    setting: str = "MODEL"
    #: Goes with every request. Never shown, not even by accident.
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    #: The same, for finding it in what a server says.
    secret: str = field(default="", repr=False)

    def url(self, path: str) -> str:
        """Where a path such as `/health` is."""
        return f"{self.base}{path}"

    def api(self, path: str) -> str:
        """Where a path of the API such as `/chat/completions` is."""
        return f"{self.base}{_VERSION}{path}"


def parse_endpoint(
    url: str, key: SecretStr | None = None, model: str = "", setting: str = "MODEL"
) -> Endpoint:
    """The server that a URL means, with or without `/v1`; raises ValueError or SettingsError."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is no URL of a model server; write http://127.0.0.1:8090")
    path = parts.path.rstrip("/")
    if path.endswith(_VERSION):
        path = path[: -len(_VERSION)].rstrip("/")
    place = parts.netloc.rpartition("@")[2]
    base = urlunsplit((parts.scheme, place, path, "", ""))
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
    """Knows the server of now; looks again at the announcement whenever it is asked."""

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
        """The server of now; None where there is none."""
        if self._fixed is not None:
            return self._fixed
        mark = self._stat_file()
        if mark is None:
            return self._handle_missing_file()
        self._missing_since = None
        if mark != self._file_version:
            self._file_version = mark
            self._announced = self._read() or self._announced
        return self._announced

    def _stat_file(self) -> _FileVersion | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _handle_missing_file(self) -> Endpoint | None:
        """Nothing is announced. A server that is started again is away for a moment only."""
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
                told: Any = codec.loads(stream.read(MOST_BYTES))
            model = told.get(ModelFileField.MODEL)
            named = self._model or (model if isinstance(model, str) else "")
            return parse_endpoint(told[ModelFileField.URL], self._key, named, self.setting)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("%s announces no model: %s", self._file, error)
            return None
