"""Use every backend and the store once, and say what works."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing

import typer

from app.core.redaction import without_password
from app.errors import APIError
from app.observability import logging as logs
from app.settings import Settings

CHECK_TIMEOUT = 15  # seconds to wait for each thing


async def reach(settings: Settings) -> bool:
    """Use every backend and the store once, say how it went, and return whether all of them work."""
    from app.main import build_backend, build_store

    async def ask(settings: Settings) -> str:
        async with aclosing(build_backend(settings)) as backend:
            await backend.check()
            models = [str(model["id"]) for model in await backend.models()]
        return f"{len(models)} models{': ' * bool(models)}{', '.join(models[:5])}{', ...' * (len(models) > 5)}"

    async def remember() -> str:
        async with aclosing(build_store(settings)) as store:
            await store.check()
            await store.put("check", "record", b"1")
            await store.delete("check", "record")
        return "reads and writes"

    works = []
    for name, backend in settings.served().items():
        for one in backend.each():
            alone = settings.model_copy(update={"backend": "auto", "backend_url": "", "backends": {name: one}})
            works.append(await _try("backend", f"{name} {without_password(one.url) or one.backend}", ask(alone)))
    works.append(await _try("store", without_password(settings.store_url), remember()))
    return all(works)


async def _try(part: str, name: str, attempt: Awaitable[str]) -> bool:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            works, said = True, await attempt
    except TimeoutError:
        works, said = False, f"no answer within {CHECK_TIMEOUT} seconds"
    except APIError as error:
        works, said = False, f"{error.message} ({error.detail})" if error.detail else error.message
    except (OSError, ValueError, ImportError) as error:
        works, said = False, str(error) or type(error).__name__
    typer.echo(logs.printable(f"{'ok' if works else 'fail':5} {part:9} {name}: {said}"))
    return works
