from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.redis_server import RedisServer, join


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[list[RedisServer]]:
    """Two nodes that share the slots, for all tests of the session."""
    with RedisServer(cluster=True) as first, RedisServer(cluster=True) as second:
        join([first, second])
        yield [first, second]
