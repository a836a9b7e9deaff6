"""
Connections to PostgreSQL: their limit, timeouts, and errors.

asyncpg's own pool makes one more round trip for each released connection, and waits for it after a cancelled call. Here
a connection is closed after any error, and the server rolls back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg

from app.errors import UnstorableValue
from app.storage.migration import Connection, UnpreparedError
from app.storage.outage import Outage
from app.storage.url_options import count, one_of, read_options, seconds

T = TypeVar("T")

# The options of a URL: those of the store, and those of libpq that asyncpg supports.
_OPTIONS: dict[str, Callable[[str], object]] = {
    "connect_timeout": seconds,
    "timeout": seconds,
    "max_connections": count,
    "statement_cache_size": lambda text: 0 if text == "0" else count(text),
}
_LIBPQ: dict[str, Callable[[str], object]] = {
    "host": str,
    "sslmode": one_of("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "sslrootcert": str,
    "sslcert": str,
    "sslkey": str,
    "target_session_attrs": one_of("any", "primary", "standby", "read-write", "read-only", "prefer-standby"),
}

# The server has stopped, is stopping, or has become a replica: a new connection may succeed.
_BROKEN = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the connection was closed during a call
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.ReadOnlySQLTransactionError,
)
# What is wrong is a value, and not the server: it would refuse it again.
_REFUSED = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)
# The tables do not exist (any more).
_UNPREPARED = (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError)

_WRITABLE = "SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off'"

_DEFAULTS: Mapping[str, float] = {
    "connect_timeout": 2.0,
    "timeout": 5.0,
    "max_connections": 20,
    "statement_cache_size": 100,
}


class PostgresAddress(NamedTuple):
    """The address and options in a store's URL."""

    url: str  # for asyncpg
    name: str  # for messages, without user and password
    options: dict[str, Any]  # of the client


def read_postgres_url(url: str, **defaults: float) -> PostgresAddress:
    """
    Parse a store's URL; raises ValueError, with a message that contains no secret.

    Options that the URL does not have are those of `defaults`, or the usual ones; timeouts are in seconds.
    """
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2]
        for host in hosts.split(","):
            urlsplit(f"//{host}").port  # noqa: B018
        if parts.fragment or "/" in parts.path[1:]:
            raise ValueError
    except ValueError:
        raise ValueError(
            "The store URL is malformed: expected postgresql://[user[:password]@]host[:port]/database, with special "
            "characters in user and password percent-encoded."
        ) from None
    options = read_options(parts.query, {**_OPTIONS, **_LIBPQ})
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name in _LIBPQ])
    address = parts._replace(scheme="postgresql", query=query).geturl()
    name = f"{hosts or options.get('host', 'localhost')}{parts.path}"
    own = {name: value for name, value in options.items() if name in _OPTIONS}
    return PostgresAddress(address, name, {**_DEFAULTS, **defaults, **own})


class PostgresClient:
    """A limited number of connections to a database."""

    def __init__(
        self,
        address: PostgresAddress,
        *,
        max_connections: int,
        timeout: float,
        connect_timeout: float,
        statement_cache_size: int,
        prepare: Callable[[Connection], Awaitable[None]],
        outage: Outage,
    ) -> None:
        """
        At most `max_connections` calls run at once; each takes at most the sum of both timeouts, including all waits.

        `prepare` creates or migrates the tables.
        """
        self._address = address
        self._connect_timeout = connect_timeout
        self._statement_cache_size = statement_cache_size
        self._timeout = connect_timeout + timeout
        self._free = asyncio.Semaphore(max_connections)
        self._idle: list[Any] = []  # connections, the most recently used last
        self._prepare = prepare
        self._prepared = False
        self._outage = outage
        self._closed = False

    async def fetch(self, query: str, *arguments: object) -> list[Any]:
        """Return the rows of a query; raises the error of the outage."""
        return await self._call(lambda connection: connection.fetch(query, *arguments))

    async def fetchval(self, query: str, *arguments: object) -> Any:
        """Return the first value of the first row, None if there is none; raises the error of the outage."""
        rows = await self.fetch(query, *arguments)
        return rows[0][0] if rows else None

    async def transaction(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `work` in a transaction and return its result; `work` may be repeated. Raises the error of the outage."""

        async def call(connection: Connection) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self._call(call)

    async def check(self) -> None:
        """Check that the server accepts writes, which a replica does not; raises the error of the outage."""
        if not await self.fetchval(_WRITABLE):
            raise self._outage.begins("it cannot be written to: is it a replica?")

    async def connect(self) -> Any:
        """Return a new connection, which the caller has to close; raises asyncpg's errors."""
        connection = await asyncpg.connect(
            self._address.url,
            timeout=self._connect_timeout,
            statement_cache_size=self._statement_cache_size,
            server_settings={"application_name": "antiphon"},
        )
        if not self._prepared:
            try:
                await self._prepare(connection)
            except BaseException:
                connection.terminate()
                raise
            self._prepared = True
        return connection

    async def aclose(self) -> None:
        """Close all connections; those in use are closed when they are released."""
        self._closed = True
        self._drop_idle()
        await asyncio.sleep(0)  # so that the sockets are closed

    async def _call(self, call: Callable[[Any], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._timeout), self._free:
                result = await self._try(call)
        except _REFUSED:
            raise UnstorableValue from None
        except (asyncpg.PostgresError, *_BROKEN, UnpreparedError) as error:
            # `from None`: a traceback would contain the query's arguments.
            reason = str(error) if isinstance(error, UnpreparedError) else f"{type(error).__name__}: {error}"
            raise self._outage.begins(reason) from None
        self._outage.ends()
        return result

    async def _try(self, call: Callable[[object], Awaitable[T]]) -> T:
        """Make a call; retry once on a new connection, since old ones may be from before a restart."""
        while True:
            connection = self._idle.pop() if self._idle else None
            reused = connection is not None
            connection = connection or await self.connect()
            try:
                result = await call(connection)
            except _UNPREPARED:
                connection.terminate()
                if not reused:
                    raise
                self._prepared = False
                self._drop_idle()
            except _BROKEN:
                connection.terminate()
                if not reused:
                    raise
                self._drop_idle()
            except BaseException:
                connection.terminate()
                raise
            else:
                if self._closed:
                    connection.terminate()
                else:
                    self._idle.append(connection)
                return result

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.terminate()
