"""Where the gateway is, unless somebody says otherwise."""

from __future__ import annotations

import os


def local_url() -> str:
    """Where `sluice up` with this environment serves."""
    return f"http://{os.environ.get('HOST') or '127.0.0.1'}:{os.environ.get('PORT') or '8080'}"
