"""`sluice model serve`: serves one model in this process until a signal arrives."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import ClassVar, NoReturn

from pydantic import Field, SecretStr

from sluice.common.observability import logs
from sluice.common.process import runtime, systemd
from sluice.common.process.host import Host, is_loopback
from sluice.common.process.systemd import Watchdog
from sluice.common.settings.base import CommonSettings, load_settings
from sluice.common.settings.models_dir import CHAT_FILE, CHAT_MODEL, models_dir
from sluice.common.text import plural
from sluice.ops.model import MB, ModelError, ModelSetupError, gguf
from sluice.ops.model.announcement import Announcement, ServedModel
from sluice.ops.model.catalogue import CHAT
from sluice.ops.model.engine import Engine, ServeOptions
from sluice.ops.model.gguf import Gguf
from sluice.ops.model.probe import ProbeResult, ServerState, probe

#: Seconds within which the server must answer once the model is loaded.
READY_S = 30.0
#: Timeout of the watchdog's probe in seconds; the server answers between two batches.
PROBE_TIMEOUT_S = 30.0
#: Signals that stop the server; closing the terminal sends SIGHUP.
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_DEBUG = "debug"


class ServeSettings(CommonSettings):
    """The settings of `sluice model serve`."""

    service: ClassVar[str] = "sluice-model"

    model_api_key: SecretStr = Field(
        SecretStr(""), description="API key that clients must send. Prefer a systemd credential."
    )


def serve(options: ServeOptions, settings: ServeSettings) -> NoReturn:
    """Serve until a signal arrives; does not return."""
    logs.configure(settings)
    announcement = Announcement(Path(settings.sluice_data_dir).absolute())
    announcement.prepare()
    header = gguf.read(options.gguf)
    _require_memory(header, options)
    engine = Engine()
    _require_free_port(options)
    _print(f"loading {options.name} ({header.size_bytes / MB:.0f} MB)")
    systemd.send(systemd.status(f"loading {options.name}"))
    # Python handles no signals while llama.cpp loads the model. Nothing is announced yet, so a
    # signal may end the process immediately.
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    url = engine.start(options)
    code = 0
    try:
        runtime.run_loop(_run(options, url, announcement))
    except ModelError as error:
        print(f"sluice: {error}", file=sys.stderr)
        code = error.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    # Do not wait for the threads of llama.cpp.
    os._exit(code)


async def _run(options: ServeOptions, url: str, announcement: Announcement) -> None:
    ended = asyncio.Event()
    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await asyncio.to_thread(_wait_ready, url, options.api_key)
    announcement.write(ServedModel(url, options.name, os.getpid()))
    try:
        _print(
            f"{options.name} is served at {url}: {plural(options.slots, 'slot')} of "
            f"{options.context} tokens"
        )
        _print(
            f"workers with SLUICE_DATA_DIR={announcement.directory} use it; others need "
            f"MODEL_URL={url}"
        )
        watchdog = _watchdog(options, url)
        keeping = asyncio.create_task(watchdog.run())
        await ended.wait()
        announcement.remove()  # first, so that no new clients connect
        watchdog.notify_stopping()
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
    finally:
        announcement.remove()


def _watchdog(options: ServeOptions, url: str) -> Watchdog:
    """A watchdog that notifies systemd while the main loop of llama.cpp answers /slots."""

    async def ask() -> str:
        seen = await asyncio.to_thread(probe, url, options.api_key, timeout_s=PROBE_TIMEOUT_S)
        if seen.state is not ServerState.UP or seen.slots is None:
            raise ModelError(seen.reason)
        return f"{seen.busy} of {plural(seen.slots, 'slot')} busy"

    return Watchdog(lambda: f"{options.name} at {url}", ask, peer="llama.cpp")


def _wait_ready(url: str, api_key: str) -> ProbeResult:
    deadline = time.monotonic() + READY_S
    while True:
        seen = probe(url, api_key)
        if seen.state is ServerState.UP:
            return seen
        if time.monotonic() > deadline:
            raise ModelError(f"llama.cpp does not answer at {url}: {seen.reason or seen.state}")
        time.sleep(0.05)


def resolve_model(path: str, name: str) -> tuple[Path, str]:
    """The file to serve and the model name; raises ModelSetupError if no model is installed."""
    if path:
        file = Path(path).expanduser().absolute()
        return file, name or file.stem
    directory = models_dir()
    file = directory / CHAT_FILE
    if not file.exists():
        raise ModelSetupError(
            f"no model is installed in {directory}; run `sluice model install`, or pass a file "
            "with --gguf"
        )
    if not CHAT.exists(directory):
        raise ModelSetupError(f"{file} is damaged; run `sluice model install` again")
    return file, name or CHAT_MODEL


def settings_for(host: str) -> ServeSettings:
    """The settings; raises ModelSetupError for a network address without an API key."""
    settings = load_settings(ServeSettings)
    if not is_loopback(host) and not settings.model_api_key.get_secret_value():
        raise ModelSetupError(
            f"--host {host} is reachable from other machines and needs an API key; set "
            "MODEL_API_KEY for the server and the workers, or use 127.0.0.1"
        )
    return settings


def is_verbose(settings: ServeSettings) -> bool:
    return settings.log_level == _DEBUG


def _require_memory(header: Gguf, options: ServeOptions) -> None:
    if header.trained_context and options.context > header.trained_context:
        raise ModelSetupError(
            f"--context {options.context} is too large: {options.name} supports at most "
            f"{header.trained_context} tokens; lower it"
        )
    free = Host().read().available_bytes
    needed = header.needed_bytes(options.slots * options.context)
    if free is not None and free < needed:
        raise ModelError(
            f"{options.name} needs about {needed / MB:.0f} MB of memory, but only "
            f"{free / MB:.0f} MB are free; stop other processes, lower --slots or --context, or "
            "use a smaller model"
        )


def _require_free_port(options: ServeOptions) -> None:
    """Fail early: llama.cpp would load the model first, and not report the cause."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((options.host, options.port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ModelError(
                f"port {options.port} on {options.host} is already in use; check `sluice model "
                "status`, or choose another --port (0: any free one)"
            ) from error
        raise ModelSetupError(
            f"--host {options.host} --port {options.port} cannot be used: {error.strerror}"
        ) from error


def _print(line: str) -> None:
    print(line, flush=True)
