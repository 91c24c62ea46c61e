"""The embedded model: installed from wheels and served by llama.cpp in a separate process."""

from __future__ import annotations

from sluice.common.errors import EXIT_CONFIG, EXIT_UNAVAILABLE, SluiceError

MB = 1_000_000


class ModelError(SluiceError):
    """A temporary problem: network, port, memory or disk space is not available."""

    exit_code = EXIT_UNAVAILABLE


class ModelSetupError(ModelError):
    """A problem that the operator must fix: a missing installation, a wrong file or option."""

    exit_code = EXIT_CONFIG
