"""Numpy with one thread: its own would wait for each other on a box that has other things to do.

Everybody gets numpy from here, and so the first one does. Importing this imports it.
"""

from __future__ import annotations

import os

#: Read once, when numpy is loaded: those of the libraries that it may be built with. Who has set
#: one of them knows why.
VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

_set_here = [name for name in VARIABLES if name not in os.environ]
os.environ.update(dict.fromkeys(_set_here, "1"))
try:
    import numpy as np
    from numpy.typing import NDArray
finally:
    for _name in _set_here:  # not for the processes that we start
        del os.environ[_name]

__all__ = ["NDArray", "np"]
