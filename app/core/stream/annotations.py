"""Bring annotations and logprobs of Chat Completions into the API's shape."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any


def flat_annotations(annotations: Any) -> Iterator[dict[str, Any]]:
    """
    Yield the URL citations of a message as the API has them.

    Chat Completions nests them, `{"type": "url_citation", "url_citation": {"url": ...}}`; the API does not.
    """
    for annotation in annotations if isinstance(annotations, list) else ():
        if not isinstance(annotation, dict):
            continue
        inner = annotation.get("url_citation")
        fields = inner if isinstance(inner, dict) else annotation
        if isinstance(url := fields.get("url"), str):
            yield {
                "type": "url_citation",
                "url": url,
                "start_index": _count(fields.get("start_index")),
                "end_index": _count(fields.get("end_index")),
                "title": str(fields.get("title") or url),
            }


def cited(citations: Any, results: Any) -> Iterator[dict[str, Any]]:
    """
    Yield the sources that a server lists beside an answer: addresses, or objects that have one.

    `results` are Perplexity's `search_results`, which tell the titles, and are all that is left of `citations`.
    """
    found = {one["url"]: one for one in _objects(results) if isinstance(one.get("url"), str)}
    for one in citations if isinstance(citations, list) and citations else found.values():
        source = one if isinstance(one, dict) else found.get(one, {"url": one}) if isinstance(one, str) else {}
        if isinstance(url := source.get("url"), str) and url:
            title = str(source.get("title") or url)
            yield {"type": "url_citation", "url": url, "start_index": 0, "end_index": 0, "title": title}


def flat_logprobs(logprobs: Any) -> list[dict[str, Any]]:
    """Return a choice's logprobs; servers leave out the bytes, or give null, or add fields of their own."""
    if not isinstance(logprobs, dict):
        return []
    content = logprobs.get("content")
    return [
        {**_logprob(token), "top_logprobs": [_logprob(top) for top in _objects(token.get("top_logprobs"))]}
        for token in (_objects(content) or _listed(logprobs))
    ]


def _listed(logprobs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is in lists side by side, as before there was chat: as Together has them."""
    tokens, values, tops = (logprobs.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not (isinstance(tokens, list) and isinstance(values, list)):
        return []
    tops = tops if isinstance(tops, list) else []
    return [
        {"token": token, "logprob": value, "top_logprobs": _ranked(top)}
        for token, value, top in zip_longest(tokens, values[: len(tokens)], tops[: len(tokens)])
    ]


def _ranked(top: Any) -> list[dict[str, Any]]:
    return [{"token": token, "logprob": value} for token, value in top.items()] if isinstance(top, dict) else []


def _objects(values: Any) -> list[dict[str, Any]]:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def _logprob(token: dict[str, Any]) -> dict[str, Any]:
    text = str(token.get("token") or "")
    given, logprob = token.get("bytes"), token.get("logprob")
    whole = isinstance(given, list) and all(type(byte) is int for byte in given)
    encoded = given if whole else list(text.encode("utf-8", "replace"))
    return {"token": text, "logprob": logprob if type(logprob) in (int, float) else 0.0, "bytes": encoded}


def _count(value: Any) -> int:
    return max(0, int(value)) if isinstance(value, int) else 0
