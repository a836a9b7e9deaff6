"""Fixtures and settings for all tests."""

from __future__ import annotations

import functools
import gc
import logging
import os
import resource
import ssl
from collections.abc import Iterator
from typing import Any

import apsw
import certifi
import pytest
from _pytest.runner import runtestprotocol
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import HealthCheck, settings

from app.api import accounting
from app.api.keys import managed_keys
from app.backends.server import local_servers
from app.observability import log_context
from app.runtime.process import tune_gc
from app.stores import postgres, redis

# The garbage collector would repeatedly traverse all imported objects, for a third of the time.
gc.disable()

pytest_plugins = ["tests.support.redis_server", "tests.support.postgres_server"]

# All test servers are local, without a proxy. Proxy tests set their own.
for name in [name for name in os.environ if name.lower() in {"http_proxy", "https_proxy", "all_proxy"}]:
    del os.environ[name]

# Some tests hold both ends of a thousand connections in one process. Many systems start with a limit of 1024 files.
_few, _most = resource.getrlimit(resource.RLIMIT_NOFILE)
_enough = 8192 if _most == resource.RLIM_INFINITY else min(8192, _most)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(_few, _enough), _most))

# httpx loads all certificates for each client, which takes longer than most tests. Clients with the same list share a
# context, because their settings are equal.
_create_context = ssl.create_default_context
_lists = {certifi.where(), os.environ.get("SSL_CERT_FILE")}
_public = functools.cache(lambda cafile: _create_context(cafile=cafile))


def _create_context_once(*args: Any, **options: Any) -> ssl.SSLContext:
    public = not args and options.keys() == {"cafile"} and options["cafile"] in _lists
    return _public(options["cafile"]) if public else _create_context(*args, **options)


ssl.create_default_context = _create_context_once

# Connections of tests wait for the server's transactions. The server sets its own timeout.
apsw.connection_hooks.append(lambda db: db.set_busy_timeout(10_000))

# Slowness is not a failure. Tests of these timeouts set their own.
accounting.BUDGET_TIMEOUT = managed_keys.FIRST_READ_TIMEOUT = local_servers._TIMEOUT = 60.0
redis.FAST_TIMEOUT = postgres.FAST = 60.0
for name in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, name, 60.0)

# If `CI` is set, hypothesis tries the same examples in each run.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Tests that take seconds, longest first. Others run last, when workers share the rest.
FIRST = (
    "tests/api/test_huge_",
    "tests/faults/test_usage.py",
    "tests/faults/",
    "tests/load/",
    "tests/tools/files/test_processes.py",
    "tests/tools/web_search/test_pages.py",
    "tests/end_to_end/test_deletion.py",
    "tests/end_to_end/test_changed_keys.py",
    "tests/end_to_end/test_replicas.py",
    "tests/cli/",
    "tests/studio/",
    "tests/tools/files/test_ingestion.py",
    "tests/verify/test_checks.py",
)


def position(item: pytest.Item) -> int:
    return next((index for index, name in enumerate(FIRST) if item.nodeid.startswith(name)), len(FIRST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=position)


def pytest_collection_finish() -> None:
    gc.enable()
    tune_gc()  # as a server does


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """
    Let pytest-xdist workers report setup and teardown only if they fail.

    Sending six messages per test takes longer than many tests. `--durations` needs all of them.
    """
    if not hasattr(item.config, "workerinput") or item.config.getoption("durations") is not None:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


# Loggers set up by `app.observability.logging.configure`.
LOGGERS = [logging.getLogger(name) for name in (None, "app", "app.content", "uvicorn", "uvicorn.access")]


@pytest.fixture(autouse=True)
def log_restored() -> Iterator[None]:
    """
    Restore the log configuration and the context variables.

    Otherwise later tests would log to a closed stderr.
    """
    before = [(logger, logger.level, logger.propagate, list(logger.handlers)) for logger in LOGGERS]
    yield
    for logger, level, propagate, handlers in before:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers
    log_context.reset()
