"""The model: does its server answer, is it the right one, are weights and embedder there?"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from common.models_dir import VARIABLE, models_dir
from ops.doctor.box import REQUEST_S, Box
from ops.doctor.finding import Finding, Unable, check, fail, note, ok, warn
from ops.doctor.text import plural
from ops.model.announcement import Announcement
from ops.model.catalogue import CHAT, EMBED, ENGINE, Weights
from ops.model.install import engine_version
from ops.model.look import Seen, State, look
from ops.model.status import UNIT_DIRECTORY
from ops.redis_target import masked

#: The installer tells workers here where the model is, and where its weights are.
DROP_IN = "/etc/systemd/system/redis-worker@.service.d/50-install.conf"
HOME = "/opt/sluice-model"
_VARIABLE = re.compile(r"^Environment=(\w+)=(.*)$", re.MULTILINE)
_FIRST_WITH_VECTOR_SETS = 8
_WITH_MODEL = "sudo deploy/install.sh install --with-model"


class Named(NamedTuple):
    """A model server, and who named it."""

    url: str
    source: str

    @property
    def shown(self) -> str:
        """Without a password."""
        return masked(self.url)


@check(
    "model.server",
    "the model server answers; chat, plan and code wait while it does not",
    "start it: `sudo systemctl start sluice-model` or `sluice model serve`; or set MODEL_URL to "
    "another one",
)
def server(box: Box) -> Finding:
    """Whether there is somebody to ask."""
    named = _named(box)
    if named is None:
        return note("none is named", "chat, plan and code end with no_model", _get_one(box))
    seen = _seen(box, named)
    where = f"{named.shown} (named by {named.source})"
    if seen.state is State.UP:
        return ok(f"{where} answers")
    if seen.state is State.LOADING:
        return note(f"{where} is loading its model", "jobs wait for it")
    if seen.state is State.LOCKED:
        fix = f"set MODEL_API_KEY to the server's key, then {_restart(box)}"
        return fail(f"{where} does not let us in: {seen.reason}", "it wants a key", fix)
    if seen.state is State.STRANGE:
        cause = "whoever answers there is no OpenAI-compatible server"
        return fail(f"{where}: {seen.reason}", cause, f"correct MODEL_URL, then {_restart(box)}")
    cause = "it is stopped, or its address is wrong; jobs wait for it"
    return fail(f"{where} does not answer: {seen.reason}", cause, _start(box, named))


@check(
    "model.name",
    "the server has the model that MODEL_NAME asks for",
    "set MODEL_NAME to one that it lists, or unset it",
)
def name(box: Box) -> Finding:
    """A name that the server does not know is refused with each job."""
    listed = _up(box).models
    wanted = box.worker_settings.model_name
    names = ", ".join(listed) or "none that it names"
    if not wanted or wanted in listed:
        return ok(f"{wanted or names} of {names}" if wanted else names)
    cause = f"it has {names}"
    fix = f"set MODEL_NAME to one of these or unset it, then {_restart(box)}"
    return fail(f"MODEL_NAME={wanted} is not there", cause, fix)


@check(
    "model.slots",
    "workers do not ask for more answers at once than the server has places",
    "unset MODEL_SLOTS, or give the server more (`--slots`, `-np`)",
)
def slots(box: Box) -> Finding:
    """What exceeds them waits in the server, where nobody sees it."""
    seen = _up(box)
    ours = box.worker_settings.model_slots
    if seen.slots is None:
        if ours:
            return ok(f"the server does not tell; MODEL_SLOTS={ours}")
        cause = "it is taken for one place"
        return note("the server does not tell", cause, "set MODEL_SLOTS to what it can do")
    told = f"{seen.busy} of {plural(seen.slots, 'slot')} busy"
    if ours > seen.slots:
        cause = "the rest waits in the server, where it can be neither seen nor reordered"
        return warn(f"{told}, and MODEL_SLOTS={ours}", cause, "unset MODEL_SLOTS")
    return ok(told)


@check(
    "model.weights",
    "the embedded model is whole, where it is installed",
    "`sluice model install`, or `sudo deploy/install.sh install --with-model`",
    limit_s=60.0,
)
def weights(box: Box) -> Finding:
    """Every byte of it."""
    directory = models_of(box)
    if not _any(CHAT, directory):
        return note(f"none in {directory}", "only `sluice model serve` needs it", _install(box))
    if damaged := [member.target for member in CHAT.lacking(directory)]:
        cause = f"missing or damaged: {', '.join(damaged)}"
        return fail(f"{CHAT.name} in {directory} is not whole", cause, _install(box))
    engines = box.path(HOME) / "engine"
    engine = engine_version(engines if engines.exists() else None)
    if engine is None:
        cause = f"{ENGINE} is not installed, which runs it"
        return warn(f"{CHAT.name} in {directory} is whole", cause, _install(box))
    return ok(f"{CHAT.name} in {directory}, for {ENGINE} {engine}")


@check(
    "model.embedder",
    "somebody makes vectors, as EMBEDDER wants it",
    "`sluice model install --only embed`, or set EMBED_URL",
    limit_s=60.0,
)
def embedder(box: Box) -> Finding:
    """Without one, documents are found by their words only."""
    settings = box.worker_settings
    if settings.embedder == "off":
        return note("EMBEDDER=off", "documents are found by their words only")
    if settings.embedder == "server":
        named = _named(box)
        if settings.embed_url or named is None:
            return _embedding_server(box)
        return ok(f"the model server at {named.shown}")
    directory = models_of(box)
    lacking = [member.target for member in EMBED.lacking(directory)]
    if not lacking and find_spec("numpy") is not None:
        return ok(f"{EMBED.name} in {directory}")
    if not lacking:
        cause = "numpy is not installed, which runs it"
        return warn(f"{EMBED.name} in {directory}", cause, "pip install 'sluice[rag]'")
    seen = f"no {EMBED.name} in {directory}"
    if settings.embedder == "minilm":
        return fail(seen, "EMBEDDER=minilm wants it, and workers do not start", _install(box))
    if _any(EMBED, directory):
        return fail(seen, f"missing or damaged: {', '.join(lacking)}", _install(box))
    if settings.embed_url:
        return _embedding_server(box)
    fix = f"{_install(box)}, or set EMBED_URL"
    return note(seen, "documents are found by their words only; embed jobs end in error", fix)


@check(
    "model.vectors",
    "vectors can be searched: by Redis itself from 8.0 on, else by numpy in the worker",
    "`pip install 'sluice[rag]'`, or a Redis from 8.0 on",
)
def vectors(box: Box) -> Finding:
    """Both give the same answers."""
    version = box.server.version
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) >= _FIRST_WITH_VECTOR_SETS:
        return ok(f"Redis {version} has vector sets")
    if find_spec("numpy") is not None:
        return ok(f"Redis {version} has none; workers search with numpy")
    fix = "pip install 'sluice[rag]', or install Redis 8"
    return warn(f"Redis {version} has none, and numpy is not installed", "only words count", fix)


def _embedding_server(box: Box) -> Finding:
    url = box.worker_settings.embed_url
    if not url:
        cause = "EMBEDDER=server, and neither EMBED_URL nor a model server is named"
        return fail("nobody makes vectors", cause, "set EMBED_URL, or EMBEDDER=auto")
    seen = _seen(box, Named(url, "EMBED_URL"))
    if seen.state in (State.DOWN, State.LOCKED, State.STRANGE):
        cause = f"it is {seen.state.value}: {seen.reason}; new documents get no vectors"
        return fail(f"the server at {masked(url)}", cause, "start it, or correct EMBED_URL")
    return ok(f"the server at {masked(url)}")


def _named(box: Box) -> Named | None:
    """The server that workers of this box ask."""
    if url := box.worker_settings.model_url:
        return Named(url, "MODEL_URL")
    if url := _told_by_the_installer(box).get("MODEL_URL"):
        return Named(url, DROP_IN)
    data = Path(box.worker_settings.sluice_data_dir).absolute()
    for directory in (data, box.path(str(UNIT_DIRECTORY))):
        announcement = Announcement(directory)
        place = announcement.read()
        if place is not None:
            return Named(place.url, str(announcement.path))
    return None


def _seen(box: Box, named: Named) -> Seen:
    key = box.worker_settings.model_api_key.get_secret_value()
    return look(named.url, key, box.fetch, REQUEST_S)


def _up(box: Box) -> Seen:
    named = _named(box)
    if named is None:
        raise Unable("no model server is named")
    seen = _seen(box, named)
    if seen.state is not State.UP:
        raise Unable("the model server does not answer, or not yet")
    return seen


def models_of(box: Box) -> Path:
    """Where weights are on this box."""
    installed = _told_by_the_installer(box).get(VARIABLE)
    named = box.environ.get(VARIABLE)
    if installed and not named:
        return box.path(installed)
    return Path(named) if named else models_dir()


def _told_by_the_installer(box: Box) -> dict[str, str]:
    return dict(_VARIABLE.findall(box.read(DROP_IN) or ""))


def _any(weights: Weights, directory: Path) -> bool:
    return any((directory / member.target).exists() for member in weights.members)


def _get_one(box: Box) -> str:
    if box.remedies.installed:
        return f"{_WITH_MODEL}, or set MODEL_URL in /etc/sluice/worker.env"
    return "make model (or: sluice model install, sluice model serve), or set MODEL_URL"


def _install(box: Box) -> str:
    return _WITH_MODEL if box.remedies.installed else "sluice model install"


def _start(box: Box, named: Named) -> str:
    if named.source == "MODEL_URL":
        return "start the server that MODEL_URL names, or correct MODEL_URL"
    if box.remedies.with_model:
        return "sudo systemctl start sluice-model; journalctl -u sluice-model -n 50 --no-pager"
    return "make model (or: sluice model serve)"


def _restart(box: Box) -> str:
    return box.remedies.restart("'redis-worker@*'")


CHECKS = (server, name, slots, weights, embedder, vectors)
