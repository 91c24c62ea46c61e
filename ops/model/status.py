"""`sluice model status`: what is installed, and what is served."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ops.model.announcement import Announcement
from ops.model.catalogue import ALL, ENGINE, pins
from ops.model.install import engine_version
from ops.model.look import Seen, State, look
from ops.model.progress import MB
from ops.model.serve import ServeSettings

#: Where the installed unit announces its model.
UNIT_DIRECTORY = Path("/run/sluice-model")


@dataclass(frozen=True)
class Installed:
    """One thing that can be installed."""

    what: str
    name: str
    #: Where it is; None where it is not.
    place: str | None
    size_bytes: int = 0


@dataclass(frozen=True)
class Served:
    """One server, and how it is."""

    url: str
    #: Who named it.
    source: str
    seen: Seen


@dataclass(frozen=True)
class Status:
    """Everything."""

    installed: list[Installed]
    served: Served | None


def status(directory: Path, settings: ServeSettings) -> Status:
    """Look at the files, and ask the server."""
    installed = [_engine()]
    for weights in ALL:
        place = str(directory) if weights.is_there(directory) else None
        installed.append(Installed(weights.purpose.value, weights.name, place, weights.size_bytes))
    return Status(installed, _served(settings))


def _engine() -> Installed:
    found = engine_version()
    wanted = pins()[ENGINE].version
    place = None if found is None else "this environment"
    name = f"{ENGINE} {found or wanted}"
    if found not in (None, wanted):
        name += f", not {wanted} as pinned"
    return Installed("engine", name, place)


def _served(settings: ServeSettings) -> Served | None:
    named = os.environ.get("MODEL_URL", "").strip()
    key = settings.model_api_key.get_secret_value()
    if named:
        return Served(named, "MODEL_URL", look(named, key))
    for directory in (Path(settings.sluice_data_dir).absolute(), UNIT_DIRECTORY):
        announcement = Announcement(directory)
        place = announcement.read()
        if place is not None:
            return Served(place.url, str(announcement.path), look(place.url, key))
    return None


def lines(found: Status) -> Iterator[str]:
    """For people."""
    for each in found.installed:
        size = f", {each.size_bytes / MB:.0f} MB" if each.size_bytes else ""
        where = f"in {each.place}{size}" if each.place else "not installed: sluice model install"
        yield f"{each.what:8} {each.name}: {where}"
    if found.served is None:
        yield "served   nothing: sluice model serve"
        return
    served, seen = found.served, found.served.seen
    if seen.state is State.UP:
        names = ", ".join(seen.models) or "a model without a name"
        slots = "" if seen.slots is None else f", {seen.busy} of {seen.slots} slots busy"
        yield f"served   {names} at {served.url}{slots} (named by {served.source})"
    else:
        reason = f": {seen.reason}" if seen.reason else ""
        yield f"served   {served.url} is {seen.state.value}{reason} (named by {served.source})"


def as_json(found: Status) -> str:
    """For programs."""
    return json.dumps(asdict(found), indent=2)
