"""Random histories over the scripts of jobs, images and workflows: the invariants hold for any
order of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import fakeredis
import pytest

from tests.support.histories.images import ImageHistory
from tests.support.histories.job_operations import JobHistory
from tests.support.histories.machine import History, search, walk
from tests.support.histories.workflow_operations import WorkflowHistory
from tests.support.servers import BUNDLED, FAKE, REAL, RealServer


class Extent(NamedTuple):
    """How many histories are run, and how long they are.

    All walks run on the embedded Redis, the first ones in the fast tier, and a quarter of them on
    each other server, since the scripts are the same there. fakeredis takes thirty times as long
    for the same script: its walks are short, and one is in the fast tier.
    """

    history: type[History]
    walks: int
    fast_walks: int
    fake_walks: int
    #: Operations of a walk, on fakeredis and on others; searches, and their operations.
    fake_steps: int
    steps: int
    searches: int
    search_steps: int


EXTENTS = {
    "jobs": Extent(JobHistory, 16, 12, 0, 0, 120, searches=25, search_steps=40),
    "images": Extent(ImageHistory, 10, 4, 4, 40, 300, searches=40, search_steps=40),
    "workflows": Extent(WorkflowHistory, 8, 3, 2, 25, 150, searches=20, search_steps=30),
}


def walks(extent: Extent) -> dict[str, tuple[int, int]]:
    """The number of walks on each server, and how many of them are fast."""
    others = dict.fromkeys(REAL, (extent.walks // 4, extent.fast_walks))
    own = {BUNDLED: (extent.walks, extent.fast_walks), FAKE: (extent.fake_walks, 1)}
    return {**others, **own}


SLOW = pytest.mark.slow("more random histories; the first ones are in the fast tier")
WALKS: list[Any] = [
    pytest.param(kind, name, seed, marks=() if seed < fast else SLOW)
    for kind, extent in EXTENTS.items()
    for name, (count, fast) in walks(extent).items()
    for seed in range(count)
]


@pytest.mark.parametrize(("kind", "name", "seed"), WALKS)
def test_invariants_hold_on_a_long_walk(
    kind: str, name: str, seed: int, real_server: Callable[[str], RealServer]
) -> None:
    extent = EXTENTS[kind]
    if name == FAKE:
        client = fakeredis.FakeRedis(server=fakeredis.FakeServer(version=(7, 2)))
        walk(extent.history(client), seed, extent.fake_steps)
    else:
        walk(extent.history(real_server(name).client), seed, extent.steps)


@pytest.mark.slow("Hypothesis; long walks with the same operations are fast")
@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("kind", EXTENTS)
def test_invariants_hold_in_every_history(
    kind: str, name: str, real_server: Callable[[str], RealServer]
) -> None:
    extent, client = EXTENTS[kind], real_server(name).client
    sizes = {"max_examples": extent.searches, "stateful_step_count": extent.search_steps}
    search(lambda: extent.history(client), **sizes)
