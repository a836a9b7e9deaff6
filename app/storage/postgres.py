from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg

from app.errors import APIError, UnstorableValue
from app.storage import Outage, count, one_of, read_options, seconds
from app.storage.tables import Connection, Rows, Statement, Transaction, UnpreparedError, execute, substitute

T = TypeVar("T")

# The store's own options, and libpq options that asyncpg supports.
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

# The server has stopped, or has become a replica: a new connection can succeed.
_BROKEN = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # connection closed during a call
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.ReadOnlySQLTransactionError,
)
# The value is at fault: the server would reject it again.
_REFUSED = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)
_UNPREPARED = (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError)
# The server has changed nothing: any call can be repeated.
_NOT_RUN = (*_UNPREPARED, asyncpg.ReadOnlySQLTransactionError)

_WRITABLE = "SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off'"

_DEFAULTS: Mapping[str, float] = {
    "connect_timeout": 2.0,
    "timeout": 5.0,
    "max_connections": 20,
    "statement_cache_size": 100,
}


class PostgresAddress(NamedTuple):
    url: str
    name: str  # for messages, without user and password
    options: dict[str, Any]  # `connect_timeout` and `timeout` in seconds, `max_connections`, `statement_cache_size`


def read_postgres_url(url: str, **defaults: float) -> PostgresAddress:
    """Raises ValueError, without secrets. URL options override `defaults`; timeouts are in seconds."""
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


NOW = "extract(epoch FROM clock_timestamp())::float8"


def in_postgres(text: str, words: Mapping[str, str]) -> str:
    return substitute(text, {**words, "{now}": NOW, "{moment}": "clock_timestamp()", "{second}": "interval '1 second'"})


class PostgresTables:
    """
    Tables in a database, used through asyncpg's pool, at most `max_connections` calls concurrently.

    An idempotent call is repeated if the connection breaks, because the connection can predate a server restart.
    """

    def __init__(
        self,
        address: PostgresAddress,
        words: Mapping[str, str],
        *,
        prepare: Callable[[Connection], Awaitable[None]],
        outage: Outage,
        storable: Callable[[object], object] = lambda value: value,
    ) -> None:
        """
        A call lasts at most the sum of both timeouts, including all waits. `words` are replaced in statements.

        `prepare` creates or migrates the tables; `storable` converts values that PostgreSQL would reject.
        """
        options = address.options
        self.outage = outage
        self._address = address
        self._text = cache(partial(in_postgres, words=words))
        self._storable = storable
        self._options: dict[str, Any] = {
            "timeout": options["connect_timeout"],
            "statement_cache_size": options["statement_cache_size"],
            "server_settings": {"application_name": "antiphon"},
        }
        self._max_connections: int = options["max_connections"]
        self._timeout: float = options["connect_timeout"] + options["timeout"]
        self._pool: Any = None
        self._prepare = prepare
        self._prepared = False

    async def fetch(self, text: str, *values: object) -> Rows:
        return await self.execute(text, *values, idempotent=True)

    async def execute(self, text: str, *values: object, idempotent: bool = False) -> Rows:
        statement, arguments = self._text(text), [*map(self._storable, values)]
        return await self._call(lambda connection: connection.fetch(statement, *arguments), idempotent)

    async def run(self, transaction: Callable[[], Transaction[T]], *, idempotent: bool = False) -> T:
        async def work(connection: Connection) -> T:
            running = transaction()
            try:
                statement = next(running)
                while True:
                    statement = running.send(await self._query(connection, statement))
            except StopIteration as end:
                result: T = end.value
                return result

        return await self.transaction(work, idempotent=idempotent)

    async def transaction(self, work: Callable[[Connection], Awaitable[T]], *, idempotent: bool = False) -> T:
        """`work` can run twice, even if not `idempotent`."""

        async def call(connection: Connection) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self._call(call, idempotent)

    def advisory_lock(self, key: str) -> Transaction[None]:
        yield execute("SELECT pg_advisory_xact_lock(hashtextextended('antiphon files ' || $1, 0))", key)

    async def check(self) -> None:
        ((writable,),) = await self.fetch(_WRITABLE)
        if not writable:
            raise self.outage.begins("it cannot be written to: is it a replica?")

    async def connect(self) -> Any:
        """A connection outside the pool; raises asyncpg's errors."""
        connection = await asyncpg.connect(self._address.url, **self._options)
        await self._prepare_tables(connection)
        return connection

    async def aclose(self) -> None:
        if self._pool is not None:
            with contextlib.suppress(TimeoutError, *_BROKEN):  # the pool then terminates the connections
                async with asyncio.timeout(self._timeout):
                    await self._pool.close()

    async def _call(self, call: Callable[[Any], Awaitable[T]], idempotent: bool) -> T:
        try:
            async with asyncio.timeout(self._timeout):
                result = await self._try(call, idempotent)
        except _REFUSED:
            raise UnstorableValue from None
        except (asyncpg.PostgresError, *_BROKEN, UnpreparedError) as error:
            # `from None`: a traceback would contain the query's arguments.
            idle, size = (self._pool.get_idle_size(), self._pool.get_size()) if self._pool else (0, 0)
            # A timed-out call has terminated its own connection.
            if isinstance(error, TimeoutError) and not idle and size == self._max_connections:
                raise self.outage.busy(f"all {self._max_connections} connections are in use") from None
            reason = str(error) if isinstance(error, UnpreparedError) else f"{type(error).__name__}: {error}"
            raise self.outage.begins(reason) from None
        self.outage.ends()
        return result

    async def _try(self, call: Callable[[Any], Awaitable[T]], idempotent: bool) -> T:
        """Make a call; repeat it on another connection unless it could take effect twice."""
        connection = await self._acquire()
        try:
            return await self._run(connection, call)
        except _NOT_RUN as error:
            if isinstance(error, _UNPREPARED):
                self._prepared = False
            await self._pool.expire_connections()
        except _BROKEN:
            if not idempotent:
                raise
        return await self._run(await self._acquire(), call)

    async def _run(self, connection: Any, call: Callable[[Any], Awaitable[T]]) -> T:
        try:
            result = await call(connection)
        except APIError:  # rejected by a transaction, which was rolled back
            await self._pool.release(connection)
            raise
        except BaseException:
            # After a cancelled call, a reset would wait for the server.
            connection.terminate()
            raise
        await self._pool.release(connection)
        return result

    async def _acquire(self) -> Any:
        if self._pool is None:
            # A pool belongs to an event loop.
            self._pool = await asyncpg.create_pool(
                self._address.url,
                min_size=0,
                max_size=self._max_connections,
                max_inactive_connection_lifetime=0,  # a timer per call costs 20 µs
                init=self._prepare_tables,
                reset=_keep_session,
                **self._options,
            )
        return await self._pool.acquire()

    async def _prepare_tables(self, connection: Any) -> None:
        if self._prepared:
            return
        try:
            await self._prepare(connection)
        except BaseException:
            connection.terminate()
            raise
        self._prepared = True

    async def _query(self, connection: Connection, statement: Statement) -> Rows:
        text = self._text(statement.text)
        if statement.many is not None:
            # Sent together, without waiting for each result.
            await connection.executemany(text, [[*map(self._storable, values)] for values in statement.many])
            return []
        rows: Rows = await connection.fetch(text, *map(self._storable, statement.values))
        return rows


async def _keep_session(connection: object) -> None:
    """Calls do not change a connection's session."""
