"""Paths, users, groups and units of an installation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

GROUP: Final = "sluice"
REDIS_USER: Final = "sluice-redis"
GATEWAY_USER: Final = "sluice-gateway"
WORKER_USER: Final = "sluice-worker"
USERS: Final = (REDIS_USER, GATEWAY_USER, WORKER_USER)
#: Exists only with the model. It does not use Redis, so it is not in the group.
MODEL_USER: Final = "sluice-model"

#: Redis users, each with its own password.
GATEWAY: Final = "gateway"
WORKER: Final = "worker"
ADMIN: Final = "admin"
REDIS_ROLES: Final = (GATEWAY, WORKER, ADMIN)

#: As written in the units; never below `--root`.
SOCKET: Final = "/run/sluice/redis.sock"

REDIS_UNIT: Final = "redis.service"
SOCKET_UNIT: Final = "redis-gateway.socket"
GATEWAY_UNIT: Final = "redis-gateway.service"
ECHO_UNIT: Final = "redis-echo-worker.service"
TARGET: Final = "sluice.target"
WORKER_UNITS: Final = "redis-worker@*.service"
MODEL_UNIT: Final = "sluice-model.service"
#: The worker that uses the model; it replaces the echo worker.
AI_UNIT: Final = "redis-worker@ai.service"


def enabled(with_model: bool) -> tuple[str, ...]:
    """Units that start at boot, in start order."""
    workers = (MODEL_UNIT, AI_UNIT) if with_model else (ECHO_UNIT,)
    return (REDIS_UNIT, SOCKET_UNIT, GATEWAY_UNIT, *workers, TARGET)


CHECKOUT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Layout:
    """All paths below one root; `/` on a real host."""

    root: Path = Path("/")

    def at(self, path: str) -> Path:
        """Converts an absolute path to a path below the root."""
        return self.root / path.lstrip("/")

    @property
    def is_live(self) -> bool:
        """True if the root is `/`: users and systemd may be changed."""
        return self.root == Path("/")

    @property
    def config(self) -> Path:
        """Settings and credentials."""
        return self.at("/etc/sluice")

    @property
    def redis_conf(self) -> Path:
        """Rewritten by each run."""
        return self.config / "redis.conf"

    @property
    def redis_local_conf(self) -> Path:
        """The operator's Redis settings; they override redis.conf."""
        return self.config / "redis-local.conf"

    @property
    def users_acl(self) -> Path:
        """Rewritten by each run from the credentials."""
        return self.config / "users.acl"

    @property
    def credentials(self) -> Path:
        """Passwords, readable by root only; systemd passes them to the services."""
        return self.config / "credentials"

    def redis_url(self, role: str) -> Path:
        """File with the Redis URL of a role, including its password."""
        return self.credentials / f"{role}.redis_url"

    @property
    def manifest(self) -> Path:
        """What was installed, with which options, and the previous state of the distribution's
        Redis.
        """
        return self.config / "manifest.json"

    @property
    def state(self) -> Path:
        """Data that `uninstall` keeps."""
        return self.at("/var/lib/sluice")

    @property
    def redis_data(self) -> Path:
        """Append-only file and snapshots of Redis: the jobs."""
        return self.state / "redis"

    @property
    def images(self) -> Path:
        """Directory of the two below. It is root's; services may only read it."""
        return self.at("/var/lib/sluice-images")

    @property
    def image_spool(self) -> Path:
        """Pending uploads; the gateway and the workers write to it."""
        return self.images / "spool"

    @property
    def image_store(self) -> Path:
        """Processed images; the gateway and the workers write to it."""
        return self.images / "store"

    @property
    def logs(self) -> Path:
        """Files that workers write for operators: webhooks that could not be delivered."""
        return self.at("/var/log/sluice")

    @property
    def socket(self) -> Path:
        """Socket of Redis."""
        return self.at(SOCKET)

    @property
    def gateway_home(self) -> Path:
        """The gateway's releases, `venv` and `main.py`."""
        return self.at("/opt/redis-gateway")

    @property
    def worker_home(self) -> Path:
        """The workers' releases, `venv` and `echo_worker.py`."""
        return self.at("/opt/redis-worker")

    @property
    def model_home(self) -> Path:
        """The embedded model: `engine`, `models` and `model.py`."""
        return self.at("/opt/sluice-model")

    @property
    def handlers(self) -> Path:
        """The operator's handler modules for `redis-worker@`."""
        return self.worker_home / "handlers"

    @property
    def units(self) -> Path:
        """Takes precedence over /usr/lib/systemd and the aliases of packages."""
        return self.at("/etc/systemd/system")

    @property
    def directories(self) -> tuple[Path, ...]:
        """Directories of Sluice, each after the one that it is in. None of them may be a link."""
        homes = (self.gateway_home, self.worker_home, self.model_home)
        return (
            *(self.config, self.credentials, self.state, self.redis_data),
            *(self.images, self.image_spool, self.image_store, self.logs, self.socket.parent),
            *homes,
            *(home / "releases" for home in homes),
            self.handlers,
        )

    @property
    def command(self) -> Path:
        """The `sluice` command on the PATH of all users."""
        return self.at("/usr/local/bin/sluice")
