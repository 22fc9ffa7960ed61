"""What tests of media share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quire.inputs.media.children import MediaChildren


@pytest.fixture(scope="session")
def children() -> Iterator[MediaChildren]:
    """Processes that decode, for all tests of one process."""
    with MediaChildren(most=2) as made:
        yield made
