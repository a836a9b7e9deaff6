"""The store contract on a Redis Cluster with three nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.load.cluster import Cluster, cluster
from tests.stores.test_contract import *  # noqa: F403
from tests.support.store_locations import Redis


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def location(nodes: Cluster) -> Redis:
    location = Redis(nodes.primaries)
    location.clear()
    return location
