"""`sluice model serve`: one model, one process, from the first check to a quick end."""

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

from common import logs, notify, runtime
from common.host import Host
from common.models_dir import CHAT_FILE, CHAT_MODEL, models_dir
from common.network import is_loopback
from common.settings import CommonSettings, load
from common.watchdog import Watchdog
from ops.model import gguf
from ops.model.announcement import Announcement, Place
from ops.model.catalogue import CHAT
from ops.model.engine import Engine, Serving
from ops.model.errors import ModelError, Unusable
from ops.model.gguf import Gguf
from ops.model.look import Seen, State, look
from ops.model.progress import MB

#: Seconds a server that has loaded its model may take until it says so.
READY_S = 30.0
#: Seconds the watchdog lets it finish a part of a prompt before it answers.
PATIENCE_S = 30.0
#: Signals that end it; a terminal that is closed sends the last one.
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_DEBUG = "debug"


class ServeSettings(CommonSettings):
    """What the environment says to `sluice model serve`."""

    service: ClassVar[str] = "sluice-model"

    model_api_key: SecretStr = Field(
        SecretStr(""), description="Key that clients must have; better a credential."
    )


def serve(serving: Serving, settings: ServeSettings) -> NoReturn:
    """Serve until a signal; ends the process."""
    logs.configure(settings)
    announcement = Announcement(Path(settings.sluice_data_dir).absolute())
    announcement.prepare()
    head = gguf.read(serving.gguf)
    _refuse_too_much(head, serving)
    engine = Engine()
    _refuse_taken_port(serving)
    _say(f"loading {serving.name} ({head.size_bytes / MB:.0f} MB)")
    notify.send(notify.status(f"loading {serving.name}"))
    # Python handles no signal while llama.cpp loads: until there is something to take back, they
    # end us the plain way.
    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL)
    url = engine.start(serving)
    code = 0
    try:
        runtime.run_loop(_run(serving, url, announcement))
    except ModelError as error:
        print(f"sluice: {error}", file=sys.stderr)
        code = error.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    # llama.cpp's threads would finish their answers first, for nobody.
    os._exit(code)


async def _run(serving: Serving, url: str, announcement: Announcement) -> None:
    ended = asyncio.Event()
    for number in _ENDING:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await asyncio.to_thread(_wait_ready, url, serving.api_key)
    announcement.write(Place(url, serving.name, os.getpid()))
    try:
        _say(
            f"{serving.name} is served at {url}: {serving.slots} slots of {serving.context} tokens"
        )
        _say(f"workers of {announcement.directory} use it; others with MODEL_URL={url}")
        watchdog = _watchdog(serving, url)
        caring = asyncio.create_task(watchdog.run())
        await ended.wait()
        announcement.remove()  # before anything else: whoever reads it should not come any more
        watchdog.stopping()
        caring.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await caring
    finally:
        announcement.remove()


def _watchdog(serving: Serving, url: str) -> Watchdog:
    """Feeds systemd's while the model's own loop answers: /slots is asked there."""

    async def ask() -> str:
        seen = await asyncio.to_thread(look, url, serving.api_key, timeout_s=PATIENCE_S)
        if seen.state is not State.UP or seen.slots is None:
            raise ModelError(seen.reason)
        return f"{seen.busy} of {seen.slots} slots busy"

    return Watchdog(lambda: f"{serving.name} at {url}", ask, whom="llama.cpp")


def _wait_ready(url: str, api_key: str) -> Seen:
    deadline = time.monotonic() + READY_S
    while True:
        seen = look(url, api_key)
        if seen.state is State.UP:
            return seen
        if time.monotonic() > deadline:
            raise ModelError(f"llama.cpp does not answer at {url}: {seen.reason or seen.state}")
        time.sleep(0.05)


def chosen(path: str, name: str) -> tuple[Path, str]:
    """The file to serve and the name to serve it by; raises Unusable where there is none."""
    if path:
        file = Path(path).expanduser().absolute()
        return file, name or file.stem
    directory = models_dir()
    file = directory / CHAT_FILE
    if not file.exists():
        raise Unusable(
            f"no model is installed in {directory}; run `sluice model install`, or name a file "
            "with --gguf"
        )
    if not CHAT.is_there(directory):
        raise Unusable(f"{file} is damaged; run `sluice model install` again")
    return file, name or CHAT_MODEL


def settings_for(host: str) -> ServeSettings:
    """The environment's settings; raises Unusable for a door that stands open to the network."""
    settings = load(ServeSettings)
    if not is_loopback(host) and not settings.model_api_key.get_secret_value():
        raise Unusable(
            f"--host {host} lets other machines in; set MODEL_API_KEY, for the workers too, or "
            "leave it at 127.0.0.1"
        )
    return settings


def is_chatty(settings: ServeSettings) -> bool:
    """Whether llama.cpp may say everything it has to say."""
    return settings.log_level == _DEBUG


def _refuse_too_much(head: Gguf, serving: Serving) -> None:
    if head.trained_context and serving.context > head.trained_context:
        raise Unusable(
            f"{serving.name} knows conversations of up to {head.trained_context} tokens; lower "
            "--context"
        )
    free = Host().read().available_bytes
    needed = head.needed_bytes(serving.slots * serving.context)
    if free is not None and free < needed:
        raise ModelError(
            f"{serving.name} needs about {needed / MB:.0f} MB of memory, and {free / MB:.0f} MB "
            "are free; end something, lower --slots or --context, or take a smaller model"
        )


def _refuse_taken_port(serving: Serving) -> None:
    """llama.cpp would load everything first, and not say why it gave up."""
    family = socket.AF_INET6 if ":" in serving.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((serving.host, serving.port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ModelError(
                f"somebody listens on {serving.host} port {serving.port} already; look at `sluice "
                "model status`, or give another --port (0: any free one)"
            ) from error
        raise Unusable(
            f"--host {serving.host} --port {serving.port} cannot be used: {error.strerror}"
        ) from error


def _say(line: str) -> None:
    print(line, flush=True)
