"""
Ask a server a number of small questions, and say what it does and which profile fits.

    report = await probe("http://localhost:8000/v1")
    print(report.table(), report.settings("local"), sep="\\n\\n")

It is asked one thing at a time, some sixty in all, each for a few tokens and within a time.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx

from app.backends.profiles import load_profile
from app.cli.probe.client import ProbedServer
from app.cli.probe.questions import HELLO, QUESTIONS, UNKNOWN, Finding, verdict
from app.core.profile import Profile
from app.errors import BackendError

# By what is in the URL, in the headers, in the list of models, or in the complaint about a field that nobody knows.
_HOSTS = {
    "api.openai.com": "openai",
    "azure.com": "azure",
    "openrouter.ai": "openrouter",
    "groq.com": "groq",
    "together.": "together",
    "fireworks.ai": "fireworks",
    "deepseek.com": "deepseek",
    "mistral.ai": "mistral",
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


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What a server does."""

    url: str
    model: str
    profile: Profile  # the built-in one that it begins with
    findings: tuple[Finding, ...]

    def table(self) -> str:
        """Return what it does, a finding in each line."""
        width = max((len(finding.about) for finding in self.findings), default=0)
        return "\n".join(f"{finding.about:{width}}  {finding.said}" for finding in self.findings)

    def overrides(self) -> dict[str, Any]:
        """Return the options in which it differs from its profile."""
        found = {name: value for finding in self.findings for name, value in finding.options.items()}
        return {name: value for name, value in found.items() if value != _option(self.profile, name)}

    def settings(self, name: str) -> str:
        """Return the lines to put into the file of settings."""
        lines = [f"[backends.{name}]", f"url = {json.dumps(self.url)}", f"profile = {json.dumps(self.profile.name)}"]
        overrides = [f"{json.dumps(option)} = {json.dumps(value)}" for option, value in self.overrides().items()]
        return "\n".join([*lines, *(["", f"[backends.{name}.overrides]", *overrides] if overrides else [])])

    def variables(self) -> str:
        """Return the same as variables, for a single backend."""
        lines = [f"ANTIPHON_BACKEND_URL={self.url}", f"ANTIPHON_BACKEND_PROFILE={self.profile.name}"]
        overrides = self.overrides()
        return "\n".join(lines + ([f"ANTIPHON_BACKEND_OVERRIDES='{json.dumps(overrides)}'"] if overrides else []))


async def probe(
    url: str, key: str | None = None, model: str | None = None, *, seconds: float = 180, each: float = 30
) -> ProbeReport:
    """
    Probe the server with that base URL, within some seconds; what was not asked by then is left out.

    Raises `BackendError` if it cannot be reached, or does not answer the simplest question.
    """
    server = ProbedServer(url, key, seconds=each)
    try:
        try:
            listed, known = await server.models()
        except httpx.HTTPError as error:
            raise BackendError(f"The server cannot be reached: {type(error).__name__}.") from error
        names = [str(one.get("id") or one.get("name") or "") for one in listed]
        model = model or next(filter(None, names), "") or "default"
        findings = [Finding("models", f"{len(names)}: {', '.join(names[:5])}" if names else "not listed")]
        findings.append(await _begin(server, model))
        try:
            async with asyncio.timeout(seconds):
                for question in QUESTIONS:
                    findings += await question(server)
        except TimeoutError:
            findings.append(Finding("the rest", f"not asked: {seconds:.0f} seconds are over"))
        owners = " ".join(str(one.get("owned_by", "")) for one in listed[:50])
        complaint = next((finding.said for finding in findings if finding.about == UNKNOWN), "")
        profile = load_profile(_recognised(url, f" {owners} {known} {complaint}"))
        return ProbeReport(url.rstrip("/"), model, profile, tuple(findings))
    finally:
        await server.aclose()


async def _begin(server: ProbedServer, model: str) -> Finding:
    """Find a form in which the simplest question is answered: there are models that take neither of its parameters."""
    for limit in ("max_tokens", "max_completion_tokens"):
        for fields in ({"model": model, "temperature": 0}, {"model": model}):
            server.limit, server.fields = limit, fields
            said = await server.ask(HELLO, stream=False)
            if said.ok:
                return Finding("model", f"{model}, asked with {', '.join([*list(fields)[1:], limit])}")
            if said.status not in (400, 422, 500):
                raise BackendError(verdict(said))
    raise BackendError(verdict(said))


def _recognised(url: str, known: str) -> str:
    """Return the name of the profile for a server, as far as it can be recognised."""
    host = httpx.URL(url).host
    for part, name in _HOSTS.items():
        if part in host:
            return name
    words = known.lower()
    return next((name for part, name in _OWNERS.items() if part in words), "default")


def _option(profile: Profile, name: str) -> Any:
    value: Any = profile
    for step in name.split("."):
        value = getattr(value, step)
    return value
