from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    DataError,
    MovedError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)

from app.errors import UnstorableValue
from app.storage import Outage, count, one_of, read_options, seconds

_NO_COUNT = re.compile("increment or decrement would overflow|value is not an integer or out of range")

# By redis-py's names. Others are rejected: unknown ones would fail at first use, and some, for example
# `decode_responses`, would break the store.
_OPTIONS: dict[str, Callable[[str], object]] = {
    "socket_connect_timeout": seconds,
    "socket_timeout": seconds,
    "max_connections": count,
    "health_check_interval": count,
    "client_name": str,
    "protocol": lambda text: int(one_of("2", "3")(text)),
}
_TLS_OPTIONS: dict[str, Callable[[str], object]] = {
    "ssl_ca_certs": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_cert_reqs": one_of("required", "optional", "none"),
    "ssl_check_hostname": lambda text: one_of("true", "false")(text) == "true",
}

_DEFAULTS: Mapping[str, float] = {
    "socket_connect_timeout": 2.0,
    "socket_timeout": 5.0,
    "max_connections": 50,
    "protocol": 2,  # servers before version 6 support no other
}

# URL before, in and after its hosts.
_HOSTS = re.compile(r"([^:/?#]+://(?:[^/?#]*@)?)([^/?#]*)(.*)", re.DOTALL)

Command: TypeAlias = tuple[str | int | bytes, ...]
Host: TypeAlias = tuple[str, int]


def lua_write_guard(command: str) -> str:
    """
    Start of a script: a write that ends the script with an error if the server does not accept writes.

    Before version 7, READONLY is in the middle of a script's error; extracted, it makes the client retry on a new
    connection, to the new primary.
    """
    return f"""
local written = redis.pcall({command})
if type(written) == 'table' and written.err then
  return redis.error_reply(written.err:match('READONLY.*') or written.err)
end"""


class RedisClient:
    """Reports errors as outages."""

    def __init__(self, servers: Redis | _Cluster, limit: int, timeout: float, outage: Outage) -> None:
        """At most `limit` calls run concurrently, each for at most `timeout` seconds, including all waits."""
        self.slots = isinstance(servers, _Cluster)  # whether commands for different keys must be sent separately
        self._servers = servers
        # Calls wait for a free connection; redis-py's pools would raise.
        self._free = asyncio.Semaphore(limit)
        self._limit = limit
        self._timeout = timeout
        self._outage = outage

    async def execute(self, key: str, *commands: Command) -> list[Any]:
        """
        Send commands for a key in a single round trip; return the replies.

        Raises `StoreUnavailable`, or `UnstorableValue` if the value is at fault.
        """
        task = asyncio.current_task()
        assert task
        cancelling, waiting = task.cancelling(), True
        try:
            async with asyncio.timeout(self._timeout), self._free:
                waiting = False
                if isinstance(self._servers, _Cluster):
                    answers = await self._servers.execute(key, commands)
                else:
                    answers = await _send(self._servers, commands)
        except (RedisError, OSError, UnicodeError) as error:
            if isinstance(error, (DataError, UnicodeError)) or _NO_COUNT.search(str(error)):
                raise UnstorableValue from None
            # `from None`: a traceback would contain the text that `_reason` omits.
            if waiting:
                raise self._outage.busy(f"all {self._limit} connections are in use") from None
            raise self._outage.begins(_reason(error)) from None
        self._outage.ends()
        if task.cancelling() > cancelling:
            # redis-py sends with `asyncio.wait_for`, which in Python 3.11 swallows a cancellation after sending.
            raise asyncio.CancelledError
        return answers

    async def execute_each(self, commands: Sequence[tuple[str, Sequence[Command]]]) -> list[Any]:
        """
        Send commands for several keys; return all replies. A key's commands keep their order.

        A cluster gets them separately: during a slot move, it would redirect all of them if any key is missing.
        """
        if not self.slots:
            return await self.execute(commands[0][0], *(command for _, group in commands for command in group))
        replies = await asyncio.gather(*(self.execute(key, *group) for key, group in commands))
        return [reply for group in replies for reply in group]

    async def aclose(self) -> None:
        await self._servers.aclose()


async def _send(client: Redis, commands: Iterable[Command]) -> list[Any]:
    """Raises the first error among the replies."""
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return await pipeline.execute()


class _Cluster:
    """
    A cluster's nodes, each with its own client.

    redis-py's asyncio RedisCluster (as of 8.1) fails: on a topology change it closes connections in use by other tasks;
    after a node restart, or during many concurrent first calls, valid calls fail.
    """

    _HOPS = 5  # redirections per call
    _PAUSE = 0.05  # seconds before a retry during a slot move

    def __init__(self, hosts: list[Host], connect: Callable[[Host], Redis]) -> None:
        self._hosts = hosts
        self._connect = connect
        self._clients: dict[Host, Redis] = {}
        self._holders: dict[int, Host] = {}  # by slot; empty until queried
        self._querying = asyncio.Lock()

    async def execute(self, key: str, commands: Sequence[Command]) -> list[object]:
        slot = key_slot(key.encode())
        asking: Host | None = None  # the key's node during a slot move
        hop = 0
        while True:
            holder = asking or await self._holder(slot)
            try:
                if asking is None:
                    return await _send(self._client(holder), commands)
                redirected = [part for command in commands for part in (("ASKING",), command)]
                return (await _send(self._client(holder), redirected))[1::2]
            except TryAgainError:
                # Only some keys have been moved: retry until all are, or until the timeout.
                await asyncio.sleep(self._PAUSE)
                asking, hop = None, 0
                continue
            except (MovedError, AskError) as redirection:
                if hop == self._HOPS:
                    raise
                target = (redirection.host or holder[0], redirection.port)
                asking = target if isinstance(redirection, AskError) else None
                if asking is None:
                    self._holders[slot] = target
            except (exceptions.ConnectionError, exceptions.TimeoutError, ClusterDownError) as error:
                self._holders, asking = {}, None
                # Another node can have taken over. A timeout has lasted long enough.
                if hop or not isinstance(error, exceptions.ConnectionError):
                    raise
            hop += 1

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    def _client(self, host: Host) -> Redis:
        if host not in self._clients:
            self._clients[host] = self._connect(host)
        return self._clients[host]

    async def _holder(self, slot: int) -> Host:
        async with self._querying:
            if not self._holders:
                self._holders = await self._query_holders()
        if slot not in self._holders:
            raise ClusterDownError("no node has the slot")
        return self._holders[slot]

    async def _query_holders(self) -> dict[int, Host]:
        # The URL's names stay valid even if all nodes change addresses.
        errors = []
        for host in dict.fromkeys([*self._hosts, *self._clients]):
            try:
                # Not as "CLUSTER SLOTS", which redis-py would parse.
                [ranges] = await _send(self._client(host), [("CLUSTER", "SLOTS")])
            except RedisError as error:
                errors.append(error)
                continue
            return {
                slot: ((primary[0] or host[0].encode()).decode(), primary[1])
                for first, last, primary, *_ in ranges
                for slot in range(first, last + 1)
            }
        raise errors[0]


def read_address(url: str) -> tuple[list[Host], bool, dict[str, Any]]:
    """
    Return hosts, whether they are a cluster, and options by redis-py's names.

    Raises ValueError, without secrets in its message.
    """
    try:
        # Since Python 3.14, `urlsplit` accepts brackets only around the whole host.
        before, hosts_text, after = match.groups() if (match := _HOSTS.fullmatch(url)) else (url, "", "")
        parts = urlsplit(f"{before}{hosts_text.partition(',')[0]}{after}")
        netlocs = [urlsplit(f"//{host}") for host in hosts_text.split(",")]
        hosts = [(netloc.hostname or "", netloc.port or 6379) for netloc in netlocs]
        path = parts.path.removeprefix("/") or "0"
        if parts.fragment or not path.isdecimal() or not all(name for name, _ in hosts):
            raise ValueError
    except ValueError:
        raise ValueError(
            "The store URL is malformed: expected redis://[[user]:password@]host[:port][/database], with special "
            "characters in user and password percent-encoded."
        ) from None
    tls, cluster = parts.scheme.startswith("rediss"), parts.scheme.endswith("+cluster")
    if cluster and int(path):
        raise ValueError("Invalid store URL: a Redis cluster has no databases. Omit the database number.")
    if len(hosts) > 1 and not cluster:
        raise ValueError("Invalid store URL: only a cluster URL, redis+cluster://, can name several hosts.")
    options = {
        **_DEFAULTS,
        "db": int(path),
        "username": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
        "ssl": tls,
        **read_options(parts.query, _OPTIONS | _TLS_OPTIONS if tls else _OPTIONS),
    }
    return hosts, cluster, options


def make_servers(hosts: list[Host], cluster: bool, options: Mapping[str, Any]) -> Redis | _Cluster:
    """A single server's address must resolve to the primary."""

    def connect(host: Host) -> Redis:
        return Redis(
            host=host[0],
            port=host[1],
            socket_keepalive=True,
            # One retry on a new connection, after a restart (ConnectionError) or failover (ReadOnlyError).
            retry=Retry(NoBackoff(), 1, (exceptions.ConnectionError, ReadOnlyError)),
            **options,
        )

    return _Cluster(hosts, connect) if cluster else connect(hosts[0])


def _reason(error: Exception) -> str:
    """The error without the command: Redis quotes even AUTH with its password."""
    if isinstance(error, MovedError):
        return "it is a node of a cluster: write redis+cluster:// in the store URL"
    text = str(error).partition(", with args beginning with")[0].rpartition(" of pipeline caused error: ")[2]
    return f"{type(error).__name__}: " + text.removeprefix("('").removesuffix("',)")
