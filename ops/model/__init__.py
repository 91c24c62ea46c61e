"""The embedded model: installed from wheels, served by llama.cpp in a process of its own."""

from __future__ import annotations

from common.errors import EXIT_CONFIG, EXIT_UNAVAILABLE, SluiceError

MB = 1_000_000


class ModelError(SluiceError):
    """Something is missing that may be there later: a network, a port, memory, disk space."""

    exit_code = EXIT_UNAVAILABLE


class ModelSetupError(ModelError):
    """Only the operator can fix it: nothing is installed, or a file or an option is wrong."""

    exit_code = EXIT_CONFIG
