"""The manifest: what was installed, with which options, and the previous state."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from deploy.installer.errors import Unsuitable
from sluice.common.version import REDIS, ServerVersion

DEFAULT_LISTEN = "127.0.0.1:8080"


@dataclass(frozen=True)
class Manifest:
    """Stored in /etc/sluice/manifest.json."""

    release: str = ""
    listen: str = DEFAULT_LISTEN
    redis_server: str = ""
    redis_version: str = ""
    #: Redis or Valkey.
    redis_product: str = REDIS
    redis_port: int = 0
    #: State of Debian's redis-server.service before the installation; `uninstall` restores it.
    foreign_redis_enabled: bool = False
    foreign_redis_active: bool = False
    #: True if the embedded model is installed.
    model: bool = False

    @property
    def redis_release(self) -> ServerVersion | None:
        """Product and version of the Redis server; None if nothing was installed before."""
        if not self.redis_version:
            return None
        return ServerVersion(self.redis_product, tuple(map(int, self.redis_version.split("."))))

    def text(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def load(cls, path: Path) -> Manifest | None:
        """Returns None if nothing is installed; raises Unsuitable if the file is invalid."""
        if not path.is_file():
            return None
        try:
            stored = json.loads(path.read_text())
            known = {name: stored[name] for name in cls.__dataclass_fields__ if name in stored}
            return cls(**known)
        except (ValueError, TypeError, KeyError) as error:
            raise Unsuitable(
                f"{path} cannot be read: {error}", f"Remove {path} and run `install` again."
            ) from error
