"""
Probes a server with small requests to find a suitable profile and options.

    report = await probe("http://localhost:8000/v1")
    print(report.table(), report.settings("local"), sep="\\n\\n")

About sixty requests are sent one after another, each with a token limit and a timeout.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from operator import attrgetter
from urllib.parse import quote

import httpx

from app.backends.apis import APIS, profiles_by_api
from app.backends.profiles import load_profile
from app.backends.server.endpoints import MODEL
from app.cli.probe.client import ProbedServer, cause_of
from app.cli.probe.questions import HELLO, QUESTIONS, UNKNOWN, Finding, verdict
from app.core.profile import Profile
from app.errors import BackendError

# By address substring, most specific first.
_HOSTS = {
    "api.openai.com": "openai",
    "azure.com": "azure",
    "openrouter.ai": "openrouter",
    "groq.com": "groq",
    "together.": "together",
    "fireworks.ai": "fireworks",
    "deepseek.com": "deepseek",
    "mistral.ai": "mistral",
    "aiplatform.googleapis.com": "vertex",
    "googleapis.com/v1beta/openai": "gemini-chat",
    "googleapis.com": "gemini",
    "anthropic.com": "anthropic",
    "x.ai": "xai",
    "cerebras.ai": "cerebras",
    "moonshot.": "moonshot",
    "dashscope": "dashscope",
    "z.ai": "zai",
    "bigmodel.cn": "zai",
    "minimax": "minimax",
    "githubcopilot.com": "copilot",
}
# By a substring of the headers, the model list, or the error for an unknown field.
_OWNERS = {
    "llamacpp": "llama.cpp",
    "llama.cpp": "llama.cpp",
    "vllm": "vllm",
    "sglang": "sglang",
    "library": "ollama",
    "organization_owner": "lm-studio",
    "text-generation-inference": "tgi",
    " me ": "llama-cpp-python",
    "unexpected fields in the request": "transformers",
}

_ABSENT = frozenset({0, 404, 405, 501})
_SUM = "What is 17 * 23?"
_TOKENS = 300  # for short reasoning


@dataclass(frozen=True, slots=True)
class ProbeReport:
    url: str
    model: str
    profile: Profile  # the built-in profile to start from
    findings: tuple[Finding, ...]

    def table(self) -> str:
        width = max((len(finding.about) for finding in self.findings), default=0)
        return "\n".join(f"{finding.about:{width}}  {finding.result}" for finding in self.findings)

    def overrides(self) -> dict[str, object]:
        options = {name: value for finding in self.findings for name, value in finding.options.items()}
        return {name: value for name, value in options.items() if value != attrgetter(name)(self.profile)}

    def settings(self, name: str) -> str:
        lines = [f"[backends.{name}]", f"url = {json.dumps(self.url)}", f"profile = {json.dumps(self.profile.name)}"]
        overrides = [f"{json.dumps(option)} = {json.dumps(value)}" for option, value in self.overrides().items()]
        return "\n".join([*lines, *(["", f"[backends.{name}.overrides]", *overrides] if overrides else [])])

    def variables(self) -> str:
        lines = [f"ANTIPHON_BACKEND_URL={self.url}", f"ANTIPHON_BACKEND_PROFILE={self.profile.name}"]
        overrides = self.overrides()
        return "\n".join(lines + ([f"ANTIPHON_BACKEND_OVERRIDES='{json.dumps(overrides)}'"] if overrides else []))


async def probe(
    url: str, key: str | None = None, model: str | None = None, *, seconds: float = 180, each: float = 30
) -> ProbeReport:
    """Take up to `seconds`, and up to `each` seconds per request."""
    options = load_profile(recognised_profile(url, "")).transport
    server = ProbedServer(url, key, seconds=each, header=options.auth_header, scheme=options.auth_scheme)
    try:
        try:
            models, headers = await server.models()
        except httpx.HTTPError as error:
            raise BackendError(cause_of(error)) from error
        names = [str(listed.get("id") or listed.get("name") or "").removeprefix("models/") for listed in models]
        model = model or next(filter(None, names), "") or "default"
        findings = [Finding("models", f"{len(names)}: {', '.join(names[:5])}" if names else "not listed")]
        paths = {name: api.path.replace(MODEL, quote(model, safe="")) for name, api in APIS.items()}
        # An existing endpoint rejects an empty request, but not as unknown.
        apis = [name for name, path in paths.items() if await server.status(path) not in _ABSENT]
        if "chat" not in apis and apis:
            profile = load_profile(recognised_profile(url, headers))
            findings.append(await _finding_on_apis(server, apis, model, profile))
            return ProbeReport(url.rstrip("/"), model, profile, tuple(findings))
        findings.append(await _begin(server, model))
        try:
            async with asyncio.timeout(seconds):
                for question in QUESTIONS:
                    findings += await question(server)
        except TimeoutError:
            findings.append(Finding("the rest", f"not tested: {seconds:.0f} seconds have passed"))
        owners = " ".join(str(listed.get("owned_by", "")) for listed in models[:50])
        complaint = next((finding.result for finding in findings if finding.about == UNKNOWN), "")
        profile = load_profile(recognised_profile(url, f" {owners} {headers} {complaint}"))
        findings.insert(1, await _finding_on_apis(server, apis, model, profile))
        return ProbeReport(url.rstrip("/"), model, profile, tuple(findings))
    finally:
        await server.aclose()


async def _begin(server: ProbedServer, model: str) -> Finding:
    """Parameters for a successful minimal request; some models reject `temperature` or `max_tokens`."""
    for limit in ("max_tokens", "max_completion_tokens"):
        for fields in ({"model": model, "temperature": 0}, {"model": model}):
            server.limit, server.fields = limit, fields
            result = await server.ask(HELLO, stream=False)
            if result.ok:
                return Finding("model", f"{model}, tested with {', '.join([*list(fields)[1:], limit])}")
            if result.status not in (400, 422, 500):
                raise BackendError(verdict(result))
    raise BackendError(verdict(result))


def recognised_profile(url: str, clues: str) -> str:
    parts = httpx.URL(url)
    address = f"{parts.host}{parts.path}"
    for part, name in _HOSTS.items():
        if part in (address if "/" in part else parts.host):
            return name
    return next((name for part, name in _OWNERS.items() if part in clues.lower()), "default")


async def _finding_on_apis(server: ProbedServer, names: list[str], model: str, profile: Profile) -> Finding:
    """Adds an option for the best API if the profile does not choose it."""
    best = names[0] if names else "chat"
    if "responses" in names and await _keeps_reasoning(server, model):
        best = "responses"
    listed = ", ".join(names) or "none"
    wanted = [each.transport.api for each in profiles_by_api(profile)]
    if wanted != ["chat"]:
        best = next((api for api in wanted if api in names), best)
    options = {} if best in wanted else {"transport.api": best}
    return Finding("APIs", f"{listed}; best: {best}" if len(names) > 1 else listed, options)


async def _keeps_reasoning(server: ProbedServer, model: str) -> bool:
    """Whether a server sends encrypted reasoning, which chat would lose."""
    request = {"model": model, "input": _SUM, "include": ["reasoning.encrypted_content"], "store": False}
    try:
        url = httpx.URL(f"{server.url}{APIS['responses'].path}")
        answer = await server.post(url, {**request, "max_output_tokens": _TOKENS})
    except BackendError:
        return False
    items = answer.get("output") if isinstance(answer, dict) else None
    return any(isinstance(item, dict) and item.get("encrypted_content") for item in items or ())
