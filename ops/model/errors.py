"""What can go wrong with the embedded model; each message names the fix."""

from __future__ import annotations

from common.errors import EXIT_CONFIG, EXIT_UNAVAILABLE, SluiceError


class ModelError(SluiceError):
    """Something is not there that may be there later: a network, a port, memory, a disk."""

    exit_code = EXIT_UNAVAILABLE


class Unusable(ModelError):
    """Only a person can help: nothing is installed, or a file or an option is wrong."""

    exit_code = EXIT_CONFIG
