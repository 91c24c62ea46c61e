"""`install` and `upgrade`: make it so, see that it works, or put everything back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.installer import foreign, model, redis_server, releases, units
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
from deploy.installer.plan import Installation, keys_of
from deploy.installer.releases import Builder, PipBuilder
from deploy.installer.say import Say
from deploy.installer.sources import Sources
from deploy.installer.steps import Applied, apply_all, show_all
from deploy.installer.units import Systemd

_TEMPLATE = WORKER_UNITS.replace("*", "")


@dataclass
class Workshop:
    """The tools of one run; tests bring their own."""

    host: Host
    say: Say
    systemd: Systemd
    sources: Sources
    builder: Builder | None = None
    health: Callable[[Manifest, Credentials], Health] | None = None
    maker: model.Maker | None = None

    @property
    def layout(self) -> Layout:
        """Where everything lies."""
        return self.host.layout


def install(shop: Workshop, options: Options) -> None:
    """Both commands; `upgrade` wants something to upgrade."""
    before = Manifest.load(shop.layout.manifest)
    if options.command == "upgrade" and before is None:
        raise Unsuitable("nothing is installed here", "Use `install.sh install`.")
    foreign.refuse_strangers(shop.host, installed=before is not None)
    python = options.python or Path(sys.executable)
    builder = shop.builder or PipBuilder(shop.host, shop.say, shop.sources, python)
    try:
        installation = _plan(shop, options, before, builder, python)
        if options.dry_run:
            _show(shop, options, installation, before)
        else:
            _make(shop, options, installation, before)
    finally:
        if isinstance(builder, PipBuilder):
            builder.close()


def _plan(
    shop: Workshop, options: Options, before: Manifest | None, builder: Builder, python: Path
) -> Installation:
    known = before or Manifest()
    named = options.redis_server or (Path(known.redis_server) if known.redis_server else None)
    if named is not None and options.redis_server is None and not named.exists():
        named = None  # the one of last time is gone: look again
    server = redis_server.find(named)
    redis_server.refuse_older(server, known.redis_version, shop.layout.redis_data)
    shop.say.step(f"Redis {server.version_text} at {server.path}")
    there = foreign.look(shop.host)
    listen = options.listen if options.listen is not None else known.listen
    manifest = replace(
        known,
        release=shop.sources.release_name(python),
        listen=units.checked_listen(listen),
        redis_server=str(server.path),
        redis_version=server.version_text,
        redis_port=known.redis_port if options.redis_port is None else options.redis_port,
        foreign_redis_enabled=known.foreign_redis_enabled or there.enabled,
        foreign_redis_active=known.foreign_redis_active or there.active,
        model=known.model or options.with_model,
    )
    credentials = Credentials.load_or_make(shop.layout)
    maker = shop.maker or model.PipMaker(shop.host, shop.say, options.wheelhouse)
    return Installation(shop.host, server, credentials, there, builder, manifest, maker)


def _show(
    shop: Workshop, options: Options, installation: Installation, before: Manifest | None
) -> None:
    changes = show_all(installation.steps(), shop.say)
    manifest = installation.manifest
    new = _newly_enabled(before, manifest)
    if new and shop.systemd.is_there:
        changes += 1
        verb = "enable and start" if options.start else "enable"
        shop.say.step(f"would: {verb} {', '.join(new)}")
        if before is not None:
            shop.say.step(f"would: stop and disable {ECHO_UNIT}")
    if before is not None and options.start:
        for unit in _asleep(shop.systemd, manifest):
            changes += 1
            shop.say.step(f"would: start {unit}")
    shop.say.line(f"{changes} changes; nothing was done" if changes else "nothing would change")


def _make(
    shop: Workshop, options: Options, installation: Installation, before: Manifest | None
) -> None:
    applied = apply_all(installation.steps(), shop.say)
    manifest = installation.manifest
    new = _newly_enabled(before, manifest)
    asleep = new if before is None else (*new, *_asleep(shop.systemd, manifest))
    try:
        _bring_up(shop, options, applied, before, new, asleep)
        if shop.systemd.is_there and options.start and (applied.steps or asleep):
            _health(shop, installation).check(options.health_timeout_s)
    except BaseException as error:
        if before is None or not isinstance(error, (InstallError, KeyboardInterrupt)):
            raise
        _roll_back(shop, applied, before, options, new)
        if isinstance(error, InstallError):
            raise Unhealthy(
                f"{error.what}; release {before.release or '(none)'} is in place again", error.fix
            ) from error
        raise
    layout = shop.layout
    links = (
        (layout.gateway_home, "venv"),
        (layout.worker_home, "venv"),
        (layout.model_home, model.ENGINE_LINK),
    )
    for home, link in links:
        for old in releases.superfluous(home, link):
            shop.say.step(f"remove the old release {old.name}")
            releases.remove(old)
    _tell(shop, manifest, changed=bool(applied.steps or asleep), started=options.start)


def _bring_up(
    shop: Workshop,
    options: Options,
    applied: Applied,
    before: Manifest | None,
    new: tuple[str, ...],
    asleep: tuple[str, ...],
) -> None:
    if not applied.steps and not asleep:
        return
    systemd = shop.systemd
    systemd.reload()
    if new and systemd.is_there:
        shop.say.step(f"enable {', '.join(new)}")
        systemd.enable(new)
        if before is not None:
            shop.say.step(f"stop and disable {ECHO_UNIT} ({AI_UNIT} takes its place)")
            with shop.say.patience("waiting for running jobs"):
                systemd.stop([ECHO_UNIT])
            systemd.disable([ECHO_UNIT])
    if options.start and systemd.is_there:
        _restart(shop, applied.concerns)
        shop.say.step(f"start {', '.join(asleep)}" if asleep else "all units run")
        systemd.start(asleep)


def _restart(shop: Workshop, concerns: set[str]) -> None:
    """Restart what runs and has changed: Redis first, so that the others find it."""
    systemd = shop.systemd
    listening = SOCKET_UNIT in concerns and systemd.is_active(SOCKET_UNIT)
    if REDIS_UNIT in concerns and systemd.is_active(REDIS_UNIT):
        shop.say.step(f"restart {REDIS_UNIT}")
        systemd.restart([REDIS_UNIT])
    if listening:  # a socket cannot change its address while its service holds it
        shop.say.step(f"restart {SOCKET_UNIT} (clients are refused for a moment)")
        systemd.stop([GATEWAY_UNIT])
        systemd.restart([SOCKET_UNIT])
        systemd.start([GATEWAY_UNIT])
    elif GATEWAY_UNIT in concerns and systemd.is_active(GATEWAY_UNIT):
        shop.say.step(f"restart {GATEWAY_UNIT} (its socket stays open; nobody is refused)")
        systemd.restart([GATEWAY_UNIT])
    workers = [ECHO_UNIT] if ECHO_UNIT in concerns and systemd.is_active(ECHO_UNIT) else []
    if concerns & {WORKER_UNITS, _TEMPLATE}:
        workers += systemd.workers()
    model_server = [MODEL_UNIT] if MODEL_UNIT in concerns and systemd.is_active(MODEL_UNIT) else []
    if workers:
        shop.say.step(f"restart {', '.join(workers)} (jobs that run get time to finish)")
        with shop.say.patience("waiting for running jobs"):
            if model_server:  # nobody shall ask it meanwhile
                systemd.stop(workers)
            else:
                systemd.restart(workers)
    if model_server:
        shop.say.step(f"restart {MODEL_UNIT}")
        systemd.restart(model_server)
        systemd.start(workers)


def _roll_back(
    shop: Workshop, applied: Applied, before: Manifest, options: Options, new: tuple[str, ...]
) -> None:
    shop.say.step(f"that does not work; going back to release {before.release}")
    concerns = applied.concerns
    if new:
        shop.systemd.stop(new[::-1])
        shop.systemd.disable(new)
    applied.undo(shop.say)
    shop.systemd.reload()
    if new:
        shop.systemd.enable([ECHO_UNIT])
    if options.start and shop.systemd.is_there:
        try:
            _restart(shop, concerns)
            shop.systemd.start(_asleep(shop.systemd, before))
        except InstallError as error:
            shop.say.hint(f"after going back: {error.what}. {error.fix}")


def _newly_enabled(before: Manifest | None, manifest: Manifest) -> tuple[str, ...]:
    """Units that are to start at boot from now on: all of them, or what comes with the model.

    What an operator has disabled since stays so.
    """
    if before is None:
        return enabled(manifest.model)
    return (MODEL_UNIT, AI_UNIT) if manifest.model and not before.model else ()


def _asleep(systemd: Systemd, manifest: Manifest) -> tuple[str, ...]:
    """Units that should run and do not; what an operator has disabled should not."""
    return tuple(
        unit
        for unit in enabled(manifest.model)
        if systemd.is_enabled(unit) and not systemd.is_active(unit)
    )


def _health(shop: Workshop, installation: Installation) -> Health:
    manifest, credentials = installation.manifest, installation.credentials
    if shop.health is not None:
        return shop.health(manifest, credentials)
    keys = keys_of(shop.layout)
    return RealHealth(shop.layout, shop.systemd, shop.say, manifest.listen, keys, credentials)


def _tell(shop: Workshop, manifest: Manifest, changed: bool, started: bool) -> None:
    if not changed:
        shop.say.line(f"nothing to change: release {manifest.release} is installed")
        return
    state = "runs" if started and shop.systemd.is_there else "is installed, and was not started"
    shop.say.line(f"release {manifest.release} {state}; it listens on {manifest.listen}")
    if not units.is_loopback(manifest.listen):
        shop.say.hint("Others can reach this address, so every request needs an API key.")
        shop.say.hint("Make one: sluice key create --name NAME")
    shop.say.hint("How it is: deploy/install.sh status; what to do when: docs/operations.md")
