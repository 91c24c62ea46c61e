"""Where everything lies on a box, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

GROUP: Final = "sluice"
REDIS_USER: Final = "sluice-redis"
GATEWAY_USER: Final = "sluice-gateway"
WORKER_USER: Final = "sluice-worker"
USERS: Final = (REDIS_USER, GATEWAY_USER, WORKER_USER)
#: Only with the model; it has no business with Redis, and is not in the group.
MODEL_USER: Final = "sluice-model"

#: Who speaks to Redis, each with a password of its own.
GATEWAY: Final = "gateway"
WORKER: Final = "worker"
ADMIN: Final = "admin"
REDIS_ROLES: Final = (GATEWAY, WORKER, ADMIN)

#: As the units name it; never below `--root`.
SOCKET: Final = "/run/sluice/redis.sock"

REDIS_UNIT: Final = "redis.service"
SOCKET_UNIT: Final = "redis-gateway.socket"
GATEWAY_UNIT: Final = "redis-gateway.service"
ECHO_UNIT: Final = "redis-echo-worker.service"
TARGET: Final = "sluice.target"
WORKER_UNITS: Final = "redis-worker@*.service"
MODEL_UNIT: Final = "sluice-model.service"
#: The worker that asks the model; with it, nobody answers with echoes.
AI_UNIT: Final = "redis-worker@ai.service"


def enabled(with_model: bool) -> tuple[str, ...]:
    """Units that start at boot, in this order."""
    workers = (MODEL_UNIT, AI_UNIT) if with_model else (ECHO_UNIT,)
    return (REDIS_UNIT, SOCKET_UNIT, GATEWAY_UNIT, *workers, TARGET)


CHECKOUT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Layout:
    """Every path below one root; `/` on a real box."""

    root: Path = Path("/")

    def at(self, path: str) -> Path:
        """An absolute path of the box, below the root."""
        return self.root / path.lstrip("/")

    @property
    def is_live(self) -> bool:
        """Whether this is the box we run on, with its users and its systemd."""
        return self.root == Path("/")

    @property
    def config(self) -> Path:
        """What operators read and edit."""
        return self.at("/etc/sluice")

    @property
    def redis_conf(self) -> Path:
        """Made anew by each run."""
        return self.config / "redis.conf"

    @property
    def redis_local_conf(self) -> Path:
        """The operator's own words to Redis; they win."""
        return self.config / "redis-local.conf"

    @property
    def users_acl(self) -> Path:
        """Made anew by each run, from the credentials."""
        return self.config / "users.acl"

    @property
    def credentials(self) -> Path:
        """Passwords, for root only; systemd hands them to the services."""
        return self.config / "credentials"

    def redis_url(self, role: str) -> Path:
        """Where a role finds Redis, and its password."""
        return self.credentials / f"{role}.redis_url"

    @property
    def manifest(self) -> Path:
        """What was installed, and what was there before."""
        return self.config / "manifest.json"

    @property
    def state(self) -> Path:
        """What outlives everything else."""
        return self.at("/var/lib/sluice")

    @property
    def redis_data(self) -> Path:
        """Redis' append-only file and snapshots: the jobs."""
        return self.state / "redis"

    @property
    def images(self) -> Path:
        """Uploads that wait, and processed images; gateway and workers write both."""
        return self.at("/var/lib/sluice-images")

    @property
    def logs(self) -> Path:
        """What workers write down for people: webhooks that were given up."""
        return self.at("/var/log/sluice")

    @property
    def socket(self) -> Path:
        """Where Redis listens."""
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
        """The operator's own modules for `redis-worker@`."""
        return self.worker_home / "handlers"

    @property
    def units(self) -> Path:
        """Before /usr/lib and before packages' aliases."""
        return self.at("/etc/systemd/system")

    @property
    def command(self) -> Path:
        """`sluice` for everybody's PATH."""
        return self.at("/usr/local/bin/sluice")
