"""Groups of tests that share an expensive server run in one test process."""

from __future__ import annotations

import os

import pytest


@pytest.mark.xdist_group("s3")
def test_xdist_knows_the_group_of_a_test(request: pytest.FixtureRequest) -> None:
    """Versions of pytest and xdist that do not fit ignore groups without an error."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("one test process")
    assert request.node.nodeid.endswith("@s3")
