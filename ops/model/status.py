"""`sluice model status`: shows what is installed and served."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sluice.common.text import plural
from sluice.ops.model import MB
from sluice.ops.model.announcement import Announcement
from sluice.ops.model.catalogue import ALL, ENGINE, pins
from sluice.ops.model.install import engine_version
from sluice.ops.model.probe import ProbeResult, ServerState, probe
from sluice.ops.model.serve import ServeSettings

#: The data directory of the installed unit.
UNIT_DIRECTORY = Path("/run/sluice-model")


@dataclass(frozen=True)
class Component:
    """The engine or the weights of one model."""

    what: str
    name: str
    #: Where it is installed; None if it is not installed.
    place: str | None
    size_bytes: int = 0


@dataclass(frozen=True)
class ServerStatus:
    """A model server and the result of its probe."""

    url: str
    #: Origin of the URL.
    source: str
    seen: ProbeResult


@dataclass(frozen=True)
class ModelStatus:
    """The installed components and the model server."""

    installed: list[Component]
    served: ServerStatus | None


def status(directory: Path, settings: ServeSettings) -> ModelStatus:
    """Check the installed files and probe the server."""
    installed = [_engine()]
    for weights in ALL:
        place = str(directory) if weights.exists(directory) else None
        installed.append(Component(weights.purpose.value, weights.name, place, weights.size_bytes))
    return ModelStatus(installed, _server_status(settings))


def _engine() -> Component:
    found = engine_version()
    pinned = pins()[ENGINE].version
    place = None if found is None else "this environment"
    name = f"{ENGINE} {found or pinned}"
    if found not in (None, pinned):
        name += f" (expected {pinned})"
    return Component("engine", name, place)


def _server_status(settings: ServeSettings) -> ServerStatus | None:
    url = os.environ.get("MODEL_URL", "").strip()
    key = settings.model_api_key.get_secret_value()
    if url:
        return ServerStatus(url, "MODEL_URL", probe(url, key))
    for directory in (Path(settings.sluice_data_dir).absolute(), UNIT_DIRECTORY):
        announcement = Announcement(directory)
        served = announcement.read()
        if served is not None:
            return ServerStatus(served.url, str(announcement.path), probe(served.url, key))
    return None


def status_lines(found: ModelStatus) -> Iterator[str]:
    for each in found.installed:
        size = f", {each.size_bytes / MB:.0f} MB" if each.size_bytes else ""
        where = (
            f"in {each.place}{size}" if each.place else "not installed; run `sluice model install`"
        )
        yield f"{each.what:8} {each.name}: {where}"
    if found.served is None:
        yield "served   nothing; run `sluice model serve`"
        return
    served, seen = found.served, found.served.seen
    if seen.state is ServerState.UP:
        names = ", ".join(seen.models) or "an unnamed model"
        slots = "" if seen.slots is None else f", {seen.busy} of {plural(seen.slots, 'slot')} busy"
        yield f"served   {names} at {served.url}{slots} (from {served.source})"
    else:
        reason = f": {seen.reason}" if seen.reason else ""
        yield f"served   {served.url} is {seen.state.description}{reason} (from {served.source})"


def as_json(found: ModelStatus) -> str:
    return json.dumps(asdict(found), indent=2)
