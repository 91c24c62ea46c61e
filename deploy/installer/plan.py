"""All steps of an installation, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deploy.installer import distro_redis, model, redis_conf, units, user_steps
from deploy.installer.acl import users_acl
from deploy.installer.credentials import Credentials
from deploy.installer.file_steps import MakeDirectory, Remove, Symlink, WriteFile
from deploy.installer.host import Host
from deploy.installer.layout import (
    CHECKOUT,
    ECHO_UNIT,
    GATEWAY_UNIT,
    GROUP,
    MODEL_UNIT,
    REDIS_ROLES,
    REDIS_UNIT,
    REDIS_USER,
    SOCKET_UNIT,
    WORKER_UNITS,
    WORKER_USER,
    Layout,
)
from deploy.installer.manifest import Manifest
from deploy.installer.redis_server import RedisServer
from deploy.installer.releases import AddRelease, Builder, target_of
from deploy.installer.steps import Step
from sluice.common.contracts.jobs import DEAD_LETTER_STREAM, QUEUE_STREAM, JobKeys
from sluice.common.redis.partitions import Partitions

DEPLOY = CHECKOUT / "deploy"
#: Root connects to Redis as admin; other users only reach the gateway.
_COMMAND = """\
#!/bin/sh
# Runs `sluice` of the active release. Root also gets admin access to Redis.
url=/etc/sluice/credentials/admin.redis_url
if [ -z "${REDIS_URL:-}" ] && [ -r "$url" ]; then
    REDIS_URL=$(cat "$url")
    export REDIS_URL
fi
exec /opt/redis-gateway/venv/bin/sluice "$@"
"""


@dataclass(frozen=True)
class Installation:
    """The desired state of the host."""

    host: Host
    server: RedisServer
    credentials: Credentials
    distro_redis: distro_redis.DistroRedis
    builder: Builder
    manifest: Manifest
    model_installer: model.ModelInstaller | None = None

    def steps(self) -> list[Step]:
        """All steps; steps that are already done report nothing pending."""
        return [
            *user_steps.create_users(self.host, self.manifest.model),
            *self._directories(),
            distro_redis.DisableDistroRedis(self.host, self.distro_redis),
            *self.redis_files(),
            *self._environment(),
            *self._releases(),
            *self._model(),
            *self._units(),
            WriteFile(self.host, self._layout.manifest, self.manifest.text()),
        ]

    @property
    def _layout(self) -> Layout:
        return self.host.layout

    def _directories(self) -> Iterable[Step]:
        layout = self._layout
        yield MakeDirectory(self.host, layout.config)
        yield MakeDirectory(self.host, layout.credentials, 0o700)
        yield MakeDirectory(self.host, layout.state)
        yield MakeDirectory(self.host, layout.redis_data, 0o700, REDIS_USER, GROUP)
        # Services may replace what is in their directories, so a directory above these is root's.
        yield MakeDirectory(self.host, layout.images, 0o750, "root", GROUP)
        for shared in (layout.image_spool, layout.image_store):
            yield MakeDirectory(self.host, shared, 0o770, WORKER_USER, GROUP)
        yield MakeDirectory(self.host, layout.gateway_home)
        yield MakeDirectory(self.host, layout.worker_home)
        yield MakeDirectory(self.host, layout.handlers)

    def redis_files(self) -> Iterable[Step]:
        """Credentials and the Redis files that depend on them."""
        layout, host = self._layout, self.host
        concerns = (REDIS_UNIT,)
        for role in REDIS_ROLES:
            content = self.credentials.url(role)
            yield WriteFile(host, layout.redis_url(role), content, 0o600, secret=True)
        memory = redis_conf.total_memory()
        content = redis_conf.redis_conf(self.server, self.manifest.redis_port, memory)
        local = redis_conf.LOCAL_CONF
        yield WriteFile(host, layout.redis_local_conf, local, once=True)
        yield WriteFile(host, layout.redis_conf, content, concerns=concerns)
        content = users_acl(self.server, keys_of(layout), self.credentials.passwords)
        yield WriteFile(
            *(host, layout.users_acl, content, 0o640, "root", REDIS_USER), concerns=concerns
        )

    def _environment(self) -> Iterable[Step]:
        for name in ("gateway", "worker"):
            content = (DEPLOY / f"{name}.env.template").read_text()
            path = self._layout.config / f"{name}.env"
            yield WriteFile(self.host, path, content, 0o640, "root", GROUP, once=True)

    def _releases(self) -> Iterable[Step]:
        layout, release = self._layout, self.manifest.release
        concerned = {
            layout.gateway_home: (GATEWAY_UNIT,),
            # The model server runs with the workers' packages.
            layout.worker_home: (ECHO_UNIT, WORKER_UNITS, MODEL_UNIT),
        }
        for home in concerned:
            yield AddRelease(home, release, self.builder)
        for home, names in self._entries().items():
            for name in names:
                content = (DEPLOY / "opt" / name).read_text()
                yield WriteFile(self.host, home / name, content, concerns=concerned[home])
        for home, concerns in concerned.items():
            yield Symlink(home / "venv", target_of(release), concerns)
        wrapper = layout.gateway_home / "sluice"
        yield WriteFile(self.host, wrapper, _COMMAND, 0o755)
        yield Symlink(layout.command, f"/{wrapper.relative_to(layout.root)}")

    def _model(self) -> Iterable[Step]:
        if self.manifest.model and self.model_installer is not None:
            release = self._layout.worker_home / "releases" / self.manifest.release
            yield from model.steps(self.host, release, self.model_installer)

    def _entries(self) -> dict[Path, tuple[str, ...]]:
        """Scripts that the units run, by directory."""
        return {
            self._layout.gateway_home: ("main.py",),
            self._layout.worker_home: ("echo_worker.py", "worker.py"),
        }

    def _units(self) -> Iterable[Step]:
        yield from units.files(self.host, self.manifest.model)
        listen = units.listen_drop_in(self.host, self.manifest.listen)
        redis = units.redis_drop_in(self.host, self.server, self.manifest.redis_port)
        gateway = units.gateway_drop_in(self.host, self.server)
        drop_ins = ((SOCKET_UNIT, listen), (REDIS_UNIT, redis), (GATEWAY_UNIT, gateway))
        for unit, (path, content) in drop_ins:
            if content is None:
                yield Remove(path, "no longer needed", concerns=(unit,))
            else:
                yield WriteFile(self.host, path, content, concerns=(unit,))


def keys_of(layout: Layout) -> JobKeys:
    """Names of the queue keys from gateway.env, or the defaults; with several partitions, those of
    partition 0.
    """
    settings = read_environment(layout.config / "gateway.env")
    keys = JobKeys(
        queue=settings.get("QUEUE_STREAM_KEY") or QUEUE_STREAM,
        dead_letters=settings.get("DLQ_STREAM_KEY") or DEAD_LETTER_STREAM,
    )
    count = settings.get("QUEUE_PARTITIONS", "")
    return Partitions.create(keys, int(count) if count.isdecimal() and int(count) else 1).home


def read_environment(path: Path) -> dict[str, str]:
    """Parses the subset of systemd's EnvironmentFile syntax that Sluice's files use."""
    if not path.is_file():
        return {}
    variables: dict[str, str] = {}
    for line in path.read_text().splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", ";")):
            variables[name.strip()] = value.strip().strip("\"'")
    return variables
