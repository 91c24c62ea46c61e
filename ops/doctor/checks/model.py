"""Checks of the model: server, name, slots, weights, embedder and vector search."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sluice.common.settings.models_dir import MODELS_DIR_VARIABLE, models_dir
from sluice.common.text import plural
from sluice.common.version import reported_version
from sluice.ops.doctor.finding import CheckSkipped, Finding, check, fail, note, ok, warn
from sluice.ops.doctor.machine import REQUEST_S, Machine
from sluice.ops.model.announcement import Announcement
from sluice.ops.model.catalogue import CHAT, EMBED, ENGINE, Weights
from sluice.ops.model.install import engine_version
from sluice.ops.model.probe import ProbeResult, ServerState, probe
from sluice.ops.model.status import UNIT_DIRECTORY
from sluice.ops.redis_target import mask_password

#: Unit drop-in in which the installer sets the workers' variables for the model.
DROP_IN = "/etc/systemd/system/redis-worker@.service.d/50-install.conf"
INSTALLED_DIRECTORY = "/opt/sluice-model"
_VARIABLE = re.compile(r"^Environment=(\w+)=(.*)$", re.MULTILINE)
_FIRST_WITH_VECTOR_SETS = 8
_WITH_MODEL = "sudo deploy/install.sh install --with-model"


class ModelServer(NamedTuple):
    """A model server and the origin of its URL."""

    url: str
    source: str

    @property
    def masked_url(self) -> str:
        return mask_password(self.url)


@check(
    "model.server",
    "the model server answers; otherwise chat, plan and code jobs wait",
    "`sudo systemctl start sluice-model` or `sluice model serve`, or set MODEL_URL to another "
    "server",
)
def server(machine: Machine) -> Finding:
    named = _find_server(machine)
    if named is None:
        return note(
            "no model server is configured",
            "chat, plan and code jobs fail with no_model",
            _fix_no_server(machine),
        )
    seen = _probe(machine, named)
    where = f"{named.masked_url} (from {named.source})"
    if seen.state is ServerState.UP:
        return ok(f"{where} answers")
    if seen.state is ServerState.LOADING:
        return note(f"{where} is loading its model", "jobs wait for it")
    if seen.state is ServerState.LOCKED:
        fix = f"set MODEL_API_KEY to the server's key, then {_fix_restart(machine)}"
        cause = "the server requires an API key"
        return fail(f"{where} rejects the request: {seen.reason}", cause, fix)
    if seen.state is ServerState.STRANGE:
        cause = "the server is not OpenAI-compatible"
        return fail(
            f"{where}: {seen.reason}", cause, f"correct MODEL_URL, then {_fix_restart(machine)}"
        )
    cause = "the server is stopped, or the URL is wrong; jobs wait for it"
    return fail(f"{where} does not answer: {seen.reason}", cause, _fix_start(machine, named))


@check(
    "model.name",
    "the server has the model set by MODEL_NAME",
    "set MODEL_NAME to one of the listed models, or unset it",
)
def name(machine: Machine) -> Finding:
    """The server refuses requests for a model that it does not have."""
    listed = _running_server(machine).models
    configured = machine.worker_settings.model_name
    names = ", ".join(listed) or "no models"
    if not configured or configured in listed:
        return ok(f"{configured} of {names}" if configured else names)
    cause = f"the server has {names}"
    fix = f"set MODEL_NAME to one of these or unset it, then {_fix_restart(machine)}"
    return fail(f"MODEL_NAME={configured} is not available", cause, fix)


@check(
    "model.slots",
    "workers do not send more concurrent requests than the server has slots",
    "unset MODEL_SLOTS, or increase the slots of the server (`--slots`, `-np`)",
)
def slots(machine: Machine) -> Finding:
    """Requests beyond the slots wait in the server, where Sluice cannot see or reorder them."""
    seen = _running_server(machine)
    configured = machine.worker_settings.model_slots
    if seen.slots is None:
        if configured:
            return ok(f"the server does not report its slots; MODEL_SLOTS={configured}")
        cause = "Sluice assumes one slot"
        fix = "set MODEL_SLOTS to the number of slots of the server"
        return note("the server does not report its slots", cause, fix)
    busy = f"{seen.busy} of {plural(seen.slots, 'slot')} busy"
    if configured > seen.slots:
        cause = "further requests wait in the server, where they can be neither seen nor reordered"
        return warn(f"{busy}, but MODEL_SLOTS={configured}", cause, "unset MODEL_SLOTS")
    return ok(busy)


@check(
    "model.weights",
    "the files of the embedded model are complete, if it is installed",
    "`sluice model install`, or `sudo deploy/install.sh install --with-model`",
    timeout_s=60.0,
)
def weights(machine: Machine) -> Finding:
    """Compares the digests of all files."""
    directory = models_directory(machine)
    if not _has_any(CHAT, directory):
        return note(
            f"not installed in {directory}",
            "only `sluice model serve` needs it",
            _fix_install(machine),
        )
    if damaged := [file.target for file in CHAT.missing_files(directory)]:
        cause = f"missing or damaged: {', '.join(damaged)}"
        return fail(f"{CHAT.name} in {directory} is damaged", cause, _fix_install(machine))
    engines = machine.path(INSTALLED_DIRECTORY) / "engine"
    engine = engine_version(engines if engines.exists() else None)
    if engine is None:
        cause = f"{ENGINE}, which runs it, is not installed"
        return warn(f"{CHAT.name} in {directory} is complete", cause, _fix_install(machine))
    return ok(f"{CHAT.name} in {directory}, for {ENGINE} {engine}")


@check(
    "model.embedder",
    "an embedder is available, as set by EMBEDDER",
    "`sluice model install --only embed`, or set EMBED_URL",
    timeout_s=60.0,
)
def embedder(machine: Machine) -> Finding:
    """Without an embedder, only lexical search is available."""
    settings = machine.worker_settings
    if settings.embedder == "off":
        return note("EMBEDDER=off", "only lexical search is available")
    if settings.embedder == "server":
        named = _find_server(machine)
        if settings.embed_url or named is None:
            return _embedding_server(machine)
        return ok(f"the model server at {named.masked_url}")
    directory = models_directory(machine)
    missing = [file.target for file in EMBED.missing_files(directory)]
    if not missing and find_spec("numpy") is not None:
        return ok(f"{EMBED.name} in {directory}")
    if not missing:
        cause = "numpy, which runs it, is not installed"
        return warn(f"{EMBED.name} in {directory}", cause, "pip install 'sluice[rag]'")
    seen = f"no {EMBED.name} in {directory}"
    if settings.embedder == "minilm":
        return fail(
            seen, "EMBEDDER=minilm requires it, so workers do not start", _fix_install(machine)
        )
    if _has_any(EMBED, directory):
        return fail(seen, f"missing or damaged: {', '.join(missing)}", _fix_install(machine))
    if settings.embed_url:
        return _embedding_server(machine)
    fix = f"{_fix_install(machine)}, or set EMBED_URL"
    if settings.model_url:
        cause = "embed jobs and vector search need a server at MODEL_URL that computes embeddings"
        return note(seen, cause, fix)
    return note(seen, "only lexical search is available; embed jobs fail", fix)


@check(
    "model.vectors",
    "vector search is available: in Redis from version 8.0, otherwise with numpy in the worker",
    "`pip install 'sluice[rag]'`, or Redis 8.0 or newer",
)
def vectors(machine: Machine) -> Finding:
    server = " ".join(reported_version(machine.server.info))
    major = machine.server.version.partition(".")[0]
    if major.isdecimal() and int(major) >= _FIRST_WITH_VECTOR_SETS:
        return ok(f"{server} has vector sets")
    if find_spec("numpy") is not None:
        return ok(f"{server} has no vector sets; workers search with numpy")
    fix = "pip install 'sluice[rag]', or install Redis 8"
    seen = f"{server} has no vector sets, and numpy is not installed"
    return warn(seen, "only lexical search is available", fix)


def _embedding_server(machine: Machine) -> Finding:
    url = machine.worker_settings.embed_url
    if not url:
        cause = "EMBEDDER=server, but neither EMBED_URL nor a model server is configured"
        return fail("no embedding server", cause, "set EMBED_URL, or EMBEDDER=auto")
    seen = _probe(machine, ModelServer(url, "EMBED_URL"))
    if seen.state in (ServerState.DOWN, ServerState.LOCKED, ServerState.STRANGE):
        cause = f"it is {seen.state.description}: {seen.reason}; new documents get no vectors"
        return fail(f"the server at {mask_password(url)}", cause, "start it, or correct EMBED_URL")
    return ok(f"the server at {mask_password(url)}")


def _find_server(machine: Machine) -> ModelServer | None:
    """The server that workers of this machine use."""
    if url := machine.worker_settings.model_url:
        return ModelServer(url, "MODEL_URL")
    if url := _installer_variables(machine).get("MODEL_URL"):
        return ModelServer(url, DROP_IN)
    data = Path(machine.worker_settings.sluice_data_dir).absolute()
    for directory in (data, machine.path(str(UNIT_DIRECTORY))):
        announcement = Announcement(directory)
        served = announcement.read()
        if served is not None:
            return ModelServer(served.url, str(announcement.path))
    return None


def _probe(machine: Machine, named: ModelServer) -> ProbeResult:
    key = machine.worker_settings.model_api_key.get_secret_value()
    return probe(named.url, key, machine.fetch, REQUEST_S)


def _running_server(machine: Machine) -> ProbeResult:
    named = _find_server(machine)
    if named is None:
        raise CheckSkipped("no model server is configured")
    seen = _probe(machine, named)
    if seen.state is not ServerState.UP:
        raise CheckSkipped("the model server does not answer yet")
    return seen


def models_directory(machine: Machine) -> Path:
    """The directory of weights on this machine."""
    installed = _installer_variables(machine).get(MODELS_DIR_VARIABLE)
    named = machine.environ.get(MODELS_DIR_VARIABLE)
    if installed and not named:
        return machine.path(installed)
    return Path(named) if named else models_dir()


def _installer_variables(machine: Machine) -> dict[str, str]:
    return dict(_VARIABLE.findall(machine.read(DROP_IN) or ""))


def _has_any(weights: Weights, directory: Path) -> bool:
    return any((directory / file.target).exists() for file in weights.files)


def _fix_no_server(machine: Machine) -> str:
    if machine.remedies.installed:
        return f"{_WITH_MODEL}, or set MODEL_URL in /etc/sluice/worker.env"
    return "make model (or sluice model install, then sluice model serve), or set MODEL_URL"


def _fix_install(machine: Machine) -> str:
    return _WITH_MODEL if machine.remedies.installed else "sluice model install"


def _fix_start(machine: Machine, named: ModelServer) -> str:
    if named.source == "MODEL_URL":
        return "start the server at MODEL_URL, or correct MODEL_URL"
    if machine.remedies.with_model:
        return "sudo systemctl start sluice-model; journalctl -u sluice-model -n 50 --no-pager"
    return "make model (or sluice model serve)"


def _fix_restart(machine: Machine) -> str:
    return machine.remedies.restart("'redis-worker@*'")


CHECKS = (server, name, slots, weights, embedder, vectors)
