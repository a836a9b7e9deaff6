"""A rolling restart behind a balancer without sticky sessions loses nothing."""

from __future__ import annotations

import tempfile

import pytest

from tests.load.conversations import TURNS, roll, talk
from tests.load.echo import Echo
from tests.load.proxy import balanced
from tests.load.replicas import replicas, shown_if_it_fails
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

CONVERSATIONS = 40  # and more until the restarts are over, with several of them always in a turn
AT_ONCE = 6


@pytest.mark.parametrize("server", [RedisServer, PostgresServer])
async def test_conversations_during_a_rolling_restart_lose_nothing(
    server: type[RedisServer | PostgresServer],
) -> None:
    with server() as store, tempfile.TemporaryFile() as log, shown_if_it_fails(log):
        async with (
            Echo() as model,
            replicas(
                2, log, forked=True, store_url=store.patient_url, backend_url=model.url, shutdown_grace=60
            ) as servers,
            balanced([server.port for server in servers]) as (balancer, url),
        ):
            figures = await talk(url, roll(servers), conversations=CONVERSATIONS, at_once=AT_ONCE)
            log.seek(0)
            logged = log.read().decode()

    assert figures.wrong == []
    assert figures.conversations >= CONVERSATIONS
    assert figures.turns.total() == figures.kept == TURNS * figures.conversations
    assert balancer.refused >= 2, "each replica was away, and found to be"
    assert min(balancer.sent.values()) > balancer.sent.total() / 10, "and each of them had its share"
    assert "Traceback" not in logged
