"""
A store in Redis (or Valkey, or whatever speaks as they do), shared by any number of replicas of this server.

    redis://[[user]:password@]host[:6379][/database]           rediss:// for TLS
    redis+cluster://host[:6379][,host:port...]                 rediss+cluster:// for TLS

A bucket is one hash, `antiphon:{bucket}`, whose braces keep it in one slot of a cluster. Each method is one round
trip. Redis forgets expired buckets itself; give it a `maxmemory-policy` of `noeviction` or `volatile-*`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, ReadOnlyError, RedisClusterException, RedisError

from app.stores import Outage, count, one_of, read_options, seconds

T = TypeVar("T")

CONNECT_TIMEOUT = 2.0
READ_TIMEOUT = 5.0
MAX_CONNECTIONS = 50

# The options of a URL, by redis-py's names. What is not here is refused: an unknown one would fail at the first use,
# and some would break the store (`decode_responses`).
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "socket_connect_timeout": seconds,
    "socket_timeout": seconds,
    "max_connections": count,
    "health_check_interval": count,
    "client_name": str,
    "protocol": lambda text: int(one_of("2", "3")(text)),
}
_TLS_OPTIONS: dict[str, Callable[[str], Any]] = {
    "ssl_ca_certs": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_cert_reqs": one_of("required", "optional", "none"),
    "ssl_check_hostname": lambda text: one_of("true", "false")(text) == "true",
}

# A script is atomic, so a bucket never lacks its expiry; and it is one command, which a cluster's client can follow
# to where the bucket has moved. Servers before 7 bury READONLY in the middle of a script's error: dig it out, because
# the client then tries again on a new connection, which leads to the new primary.
_PUT = """
local kept = redis.pcall('HSET', KEYS[1], ARGV[1], ARGV[2])
if type(kept) == 'table' and kept.err then return redis.error_reply(kept.err:match('READONLY.*') or kept.err) end
return redis.call('PEXPIRE', KEYS[1], ARGV[3])
"""


class RedisStore:
    """Buckets as hashes of one Redis server or cluster."""

    def __init__(
        self, client: Redis | RedisCluster, *, ttl: float, turns: int, patience: float, outage: Outage
    ) -> None:
        self._client = client
        self._ttl = max(1, round(ttl * 1000))  # milliseconds
        # Who finds no connection free waits in turn; the client's own pools would raise.
        self._turns = asyncio.Semaphore(turns)
        self._patience = patience  # seconds for one call, with everything that it may wait for
        self._outage = outage

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        ttl: float,
        socket_connect_timeout: float = CONNECT_TIMEOUT,
        socket_timeout: float = READ_TIMEOUT,
        max_connections: int = MAX_CONNECTIONS,
    ) -> RedisStore:
        """
        Make the store of a `redis://` URL or its like, whose options win over the arguments; timeouts are in seconds.

        The first use connects. A bad URL raises ValueError, whose message quotes nothing that could be a secret.
        """
        address = _read_address(url)
        options: dict[str, Any] = {
            "socket_connect_timeout": socket_connect_timeout,
            "socket_timeout": socket_timeout,
            "max_connections": max_connections,
            **read_options(address.query, _OPTIONS | _TLS_OPTIONS if address.tls else _OPTIONS),
        }
        hosts = ", ".join(f"{host}:{port}" for host, port in address.hosts)
        return cls(
            ttl=ttl,
            turns=options.pop("max_connections"),
            patience=options["socket_connect_timeout"] + options["socket_timeout"],
            outage=Outage(f"Redis at {hosts}"),
            client=_connect(address, options),
        )

    async def put(self, bucket: str, name: str, record: bytes) -> None:
        """Keep a record and renew its bucket, at once."""
        await self._ask(lambda: self._client.execute_command("EVAL", _PUT, 1, _key(bucket), name, record, self._ttl))

    async def get(self, bucket: str, name: str) -> bytes | None:
        """Return one record, and renew its bucket."""
        record: bytes | None = await self._read("HGET", bucket, name)
        return record

    async def all(self, bucket: str) -> dict[str, bytes]:
        """Return a bucket's records by name, and renew it."""
        records: dict[bytes, bytes] = await self._read("HGETALL", bucket)
        return {name.decode(): record for name, record in records.items()}

    async def delete(self, bucket: str, name: str) -> bool:
        """Forget one record; tell whether it was there (no longer, if the connection broke after Redis did it)."""
        return bool(await self._ask(lambda: self._client.execute_command("HDEL", _key(bucket), name)))

    async def check(self) -> None:
        """Do nothing that counts as a write: a PING is answered by a server that refuses writes, too."""
        await self._ask(lambda: self._client.execute_command("PEXPIRE", _key(""), self._ttl))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _read(self, command: str, bucket: str, *arguments: str) -> Any:
        # Not a transaction: if the bucket is not renewed it lives as long as before.
        pipeline = self._client.pipeline(transaction=False)
        pipeline.execute_command(command, _key(bucket), *arguments)
        pipeline.execute_command("PEXPIRE", _key(bucket), self._ttl)
        answers = await self._ask(pipeline.execute)
        return answers[0]

    async def _ask(self, command: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._patience), self._turns:
                answer = await command()
        except (RedisError, RedisClusterException, OSError) as error:
            # `from None`, because a traceback would quote what `_reason` leaves out.
            raise self._outage.begins(_reason(error)) from None
        self._outage.ends()
        return answer


class _Address(NamedTuple):
    hosts: list[tuple[str, int]]
    database: int
    username: str | None
    password: str | None
    tls: bool
    cluster: bool
    query: str


def _read_address(url: str) -> _Address:
    try:
        parts = urlsplit(url)
        netlocs = parts.netloc.rpartition("@")[2].split(",")
        hosts = [(host.hostname or "", host.port or 6379) for host in (urlsplit(f"//{netloc}") for netloc in netlocs)]
        path = parts.path.removeprefix("/") or "0"
        if parts.fragment or not path.isdecimal() or not all(name for name, _ in hosts):
            raise ValueError
    except ValueError:
        raise ValueError(
            "The store URL is malformed: expected redis://[[user]:password@]host[:port][/database], with special "
            "characters in user and password percent-encoded."
        ) from None
    address = _Address(
        hosts=hosts,
        database=int(path),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=parts.scheme.startswith("rediss"),
        cluster=parts.scheme.endswith("+cluster"),
        query=parts.query,
    )
    if address.cluster and address.database:
        raise ValueError("A Redis cluster has no databases: leave the number out of the store URL.")
    if len(hosts) > 1 and not address.cluster:
        raise ValueError("Only the store URL of a cluster, redis+cluster://, can name several hosts.")
    return address


def _connect(address: _Address, options: dict[str, Any]) -> Redis | RedisCluster:
    options = {
        "username": address.username,
        "password": address.password,
        "ssl": address.tls,
        "protocol": 2,  # servers before 6 know no other
        "socket_keepalive": True,
        "max_connections": 2**31 - 1,  # the store has its own bound
        **options,
    }
    # Once more, on a new connection: the old one may be from before a restart (ConnectionError), or lead to what has
    # become a replica (ReadOnlyError). Not after a timeout, which has cost the caller enough.
    if address.cluster:
        return RedisCluster(
            startup_nodes=[ClusterNode(host, port) for host, port in address.hosts],
            dynamic_startup_nodes=False,  # the URL's names still lead there when every node has a new address
            retry=Retry(NoBackoff(), 1),
            **options,
        )
    [(host, port)] = address.hosts
    retry = Retry(NoBackoff(), 1, (ConnectionError, ReadOnlyError))
    return Redis(host=host, port=port, db=address.database, retry=retry, **options)


def _key(bucket: str) -> str:
    return f"antiphon:{{{bucket}}}"


def _reason(error: Exception) -> str:
    """Say what is wrong, without the command: Redis quotes those that it does not know, AUTH and its password too."""
    text = str(error).rpartition("of pipeline caused error: ")[2].partition(", with args beginning with")[0]
    return f"{type(error).__name__}: {text}"
