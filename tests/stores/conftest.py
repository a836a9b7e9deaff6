from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer, join
from tests.support.store_locations import STORES, StoreLocation, location_of


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[list[RedisServer]]:
    """Two nodes with all slots, for the whole session."""
    with RedisServer(cluster=True) as first, RedisServer(cluster=True) as second:
        join([first, second])
        yield [first, second]


@pytest.fixture(params=[*STORES, "cluster"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    """An empty location per store kind."""
    return location_of(request, tmp_path)
