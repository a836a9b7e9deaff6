"""Finds a server's APIs, and the best API."""

from __future__ import annotations

from urllib.parse import quote

from app.backends.apis import APIS, profiles_by_api
from app.backends.server.endpoints import MODEL
from app.cli.probe.client import ProbedServer
from app.cli.probe.questions import Finding
from app.core.profile import Profile

_ABSENT = frozenset({0, 404, 405, 501})
_SUM = "What is 17 * 23?"
_TOKENS = 300  # for short reasoning


async def available_apis(server: ProbedServer, model: str) -> list[str]:
    """An existing endpoint rejects an empty request, but not as unknown."""
    paths = {name: api.path.replace(MODEL, quote(model, safe="")) for name, api in APIS.items()}
    return [name for name, path in paths.items() if await server.status(path) not in _ABSENT]


async def finding_on_apis(server: ProbedServer, names: list[str], model: str, profile: Profile) -> Finding:
    """Adds an option for the best API if the profile does not choose it."""
    best = names[0] if names else "chat"
    if "responses" in names and await _keeps_reasoning(server, model):
        best = "responses"
    listed = ", ".join(names) or "none"
    chosen = [each.transport.api for each in profiles_by_api(profile)]
    if chosen[0] in names or (profile.transport.api == "auto" and "chat" in names):
        best = best if chosen == ["chat"] else chosen[0] if chosen[0] in names else "chat"
    options = {} if best in chosen else {"transport.api": best}
    return Finding("APIs", f"{listed}; best: {best}" if len(names) > 1 else listed, options)


async def _keeps_reasoning(server: ProbedServer, model: str) -> bool:
    """Whether a server sends encrypted reasoning, which chat would lose."""
    request = {"model": model, "input": _SUM, "include": ["reasoning.encrypted_content"], "store": False}
    answer = await server.answer_of(APIS["responses"].path, {**request, "max_output_tokens": _TOKENS})
    items = answer.get("output") if isinstance(answer, dict) else None
    return any(isinstance(item, dict) and item.get("encrypted_content") for item in items or ())
