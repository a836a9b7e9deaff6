"""`antiphon check`: checks every backend, the store and every hosted tool."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing

import click

from app.backends.apis import profiles_by_api
from app.core.redaction import without_password
from app.errors import APIError
from app.observability import logging as logs
from app.responses.policy import Direction
from app.settings import Settings, VisionSettings
from app.settings.auth import JWTSettings

CHECK_TIMEOUT = 15  # seconds per check

_DIRECTIONS: tuple[Direction, ...] = ("input", "output")


async def check_connectivity(settings: Settings) -> bool:
    """Print each result; return whether all checks succeeded."""
    from app.assembly.parts import build_backend, build_policy, build_signing_keys, build_store

    async def check_backend(settings: Settings, api: str) -> str:
        async with aclosing(build_backend(settings)) as backend:
            await backend.check()
            models = [str(model["id"]) for model in await backend.models()]
        listed = f"{len(models)} models{': ' * bool(models)}{', '.join(models[:5])}{', ...' * (len(models) > 5)}"
        return f"{listed}; API {api}" if api != "chat" else listed

    async def check_store() -> str:
        async with aclosing(build_store(settings)) as store:
            await store.check()
            await store.put("check", "record", b"1")
            await store.delete("check", "record")
        return "reads and writes"

    async def check_signing_keys(jwt: JWTSettings) -> str:
        async with aclosing(build_signing_keys(jwt)) as keys:
            count = await keys.check()
        return f"{count} public key{'s' * (count != 1)}"

    async def check_policy(direction: Direction) -> str:
        policy = build_policy(settings.hooks)
        assert policy
        async with aclosing(policy):
            return f"answers {await policy.check(direction)!r} to a greeting"

    works = []
    for name, backend in settings.served().items():
        for server in backend.each():
            alone = settings.model_copy(update={"backend": "auto", "backend_url": "", "backends": {name: server}})
            label = f"{name} {without_password(server.url) or server.backend}"
            api = " or else ".join(each.transport.api for each in profiles_by_api(server.options()))
            works.append(await _try("backend", label, check_backend(alone, api)))
    works.append(await _try("store", without_password(settings.store_url), check_store()))
    if settings.auth and settings.auth.jwt:
        jwt = settings.auth.jwt
        source = jwt.jwks_url or str(jwt.jwks_file)
        works.append(await _try("auth", source, check_signing_keys(jwt)))
    for direction in _DIRECTIONS if settings.hooks else ():
        if url := getattr(settings.hooks, f"{direction}_url"):
            works.append(await _try("hook", f"{direction} {url}", check_policy(direction)))
    if settings.vision:
        works.append(await _try("vision", settings.vision.model, _check_vision(settings, settings.vision)))
    return all([*works, await _check_tools(settings)])


async def _check_vision(settings: Settings, vision: VisionSettings) -> str:
    """The backend must list the model, if it lists any."""
    from app.assembly.parts import build_backend

    async with aclosing(build_backend(settings)) as router:
        listed = {str(model["id"]) for model in await router.models_of(vision.backend)}
    name = settings.served()[vision.backend].aliases.get(vision.model, vision.model)
    if listed and name not in listed:
        raise ValueError(f"the backend '{vision.backend}' does not list the model")
    return f"describes images at the backend '{vision.backend}'"


async def _check_tools(settings: Settings) -> bool:
    """Checks each tool's dependencies, for example every declared MCP server."""
    from app.assembly.parts import try_to_build_tools

    tools, problems = try_to_build_tools(settings)
    works = [_print("tool", False, problem) for problem in problems]
    for name, tool in tools.items():
        async with aclosing(tool):
            parts = await tool.check()
        details = tool.details()
        for part, problem in parts.items():
            found = f"works{', ' * (part in details)}{details.get(part, '')}"
            works.append(_print("tool", not problem, f"{name} {part}: {problem or found}"))
    return all(works)


async def _try(part: str, name: str, attempt: Awaitable[str]) -> bool:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            works, result = True, await attempt
    except TimeoutError:
        works, result = False, f"no answer within {CHECK_TIMEOUT} seconds"
    except APIError as error:
        works, result = False, f"{error.message.rstrip('.')} ({error.detail})" if error.detail else error.message
    except (OSError, ValueError, ImportError) as error:
        works, result = False, str(error) or type(error).__name__
    return _print(part, works, f"{name}: {result}")


def _print(part: str, works: bool, result: str) -> bool:
    click.echo(logs.printable(f"{'ok' if works else 'fail':5} {part:9} {result}"))
    return works
