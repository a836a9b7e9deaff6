"""
A response's usage: reported by the backend, or estimated; and its `tool_usage`, without model tokens.

Estimates are for truncating conversations and backends that report no usage, not for billing. With large vocabularies,
most words, numbers and runs of punctuation are one or two tokens; scripts without spaces have about one token per
character.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from app.core.bounded_json import to_json
from app.core.types import Item, JSONMapping, Usage, json_list, json_object
from app.core.types.deltas import TokenCounts


def usage_of(
    counts: TokenCounts | None,
    body: Mapping[str, object],
    output: Sequence[Item | str],
    prompt_estimate: int | None = None,
) -> Usage:
    """
    Usage reported by the backend, otherwise estimated, because clients loop or crash without usage.

    Unreported reasoning tokens are estimated by their share of the output text.
    """
    if counts is None:
        reasoning, rest = _estimates(output)
        prompt_tokens = estimate_prompt(body) if prompt_estimate is None else prompt_estimate
        return _usage(prompt_tokens, reasoning + rest, reasoning=reasoning)
    prompt, completion, cached, written, reported, _ = counts
    if reported is None:
        reasoning, rest = _estimates(output) if any(map(_is_reasoning, output)) else (0, 0)
        reported = -(-completion * reasoning // (reasoning + rest)) if reasoning else 0
    return _usage(prompt, completion, min(cached, prompt), written, min(reported, completion))


def request_usage(reported: object) -> Usage | None:
    """Usage reported by another endpoint, for example images or embeddings."""
    counts = json_object(reported)
    output_tokens = token_count(counts.get("output_tokens"), counts.get("completion_tokens"))
    input_tokens = token_count(counts.get("input_tokens"), counts.get("prompt_tokens"))
    if not input_tokens and not output_tokens:
        input_tokens = token_count(counts.get("total_tokens"))
    return _usage(input_tokens, output_tokens) if input_tokens or output_tokens else None


def estimated_usage(texts: Iterable[str]) -> Usage:
    return _usage(sum(map(estimate, texts)), 0)


def counts_of(usage: Usage) -> tuple[int, int, int, int, int]:
    """Input, output, cached, written and reasoning tokens: the order of `TokenCounts`."""
    details = usage["input_tokens_details"]
    return (
        usage["input_tokens"],
        usage["output_tokens"],
        details["cached_tokens"],
        details["cache_write_tokens"],
        usage["output_tokens_details"]["reasoning_tokens"],
    )


def added_usage(usage: Usage | None, more: Usage) -> Usage:
    return _usage(*map(operator.add, counts_of(usage), counts_of(more))) if usage else more


def usage_since(before: Usage | None, usage: Usage) -> Usage:
    """Too high earlier estimates count as no difference."""
    if not before:
        return usage
    counts = zip(counts_of(usage), counts_of(before), strict=True)
    return _usage(*(max(0, count - earlier) for count, earlier in counts))


_NANOS = 10**9  # per currency unit: see `app.core.prices`
_MAX_COST = 10**6  # US dollars per request


def cost_in_nanos(dollars: object) -> int | None:
    """`dollars` can be text."""
    try:
        amount = float(dollars) if isinstance(dollars, (int, float, str)) and not isinstance(dollars, bool) else -1.0
    except (ValueError, OverflowError):
        return None
    return round(amount * _NANOS) if 0 <= amount <= _MAX_COST else None


def _estimates(output: Iterable[Item | str]) -> tuple[int, int]:
    reasoning = rest = 0
    for item in output:
        tokens = sum(map(estimate, _texts_of(item)))
        if _is_reasoning(item):
            reasoning += tokens
        else:
            rest += tokens
    return reasoning, rest


def _is_reasoning(item: Item | str) -> bool:
    return not isinstance(item, str) and item["type"] == "reasoning"


def _usage(input_tokens: int, output_tokens: int, cached: int = 0, written: int = 0, reasoning: int = 0) -> Usage:
    return {
        "input_tokens": input_tokens,
        # `cache_write_tokens` is OpenAI's; its SDK requires it.
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": input_tokens + output_tokens,
    }


# Larger values are errors, and could overflow the ledger's 64-bit sums and costs.
_MAX_COUNT = 10**9


def is_token_count(value: object) -> TypeGuard[str | int | float]:
    """Some servers send counts as strings."""
    if isinstance(value, str):
        return value.isdecimal() and len(value) < 16
    return isinstance(value, (int, float)) and 0 <= value < _MAX_COUNT


def token_counts(fields: Mapping[str, object]) -> dict[str, int]:
    counts = {}
    for name, value in fields.items():
        if type(value) is int and 0 <= value < _MAX_COUNT:  # nearly always
            counts[name] = value
        elif value is not None and type(value) is not dict and is_token_count(value):
            counts[name] = int(value)
    return counts


def token_count(*values: object) -> int:
    return reported_count(*values) or 0


def reported_count(*values: object) -> int | None:
    for value in values:
        if type(value) is int and 0 <= value < _MAX_COUNT:
            return value
        if value is not None and is_token_count(value):
            return int(value)
    return None


def _texts_of(item: Item | str) -> Iterator[str]:
    if isinstance(item, str):
        yield item
        return
    for name in ("name", "arguments", "input"):
        if isinstance(value := item.get(name), str):
            yield value
    for part in json_list(item.get("content")) or json_list(item.get("summary")):  # raw reasoning can be in both
        yield part.get("text") or part.get("refusal") or ""


# Numbers by name, and groups of numbers: `{"web_search": {"num_requests": 1}}`.
Counts: TypeAlias = Mapping[str, "int | Counts"]

# Required by OpenAI's SDKs.
_NO_TOOLS: Counts = {
    "image_gen": {
        "input_tokens": 0,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
        "output_tokens": 0,
        "total_tokens": 0,
    },
    "web_search": {"num_requests": 0},
}


def added_counts(counts: Counts, more: Counts) -> dict[str, int | Counts]:
    added = dict(counts)
    for name, value in more.items():
        before = added.get(name)
        if isinstance(value, Mapping):
            added[name] = added_counts(before if isinstance(before, Mapping) else {}, value)
        else:
            added[name] = (before if isinstance(before, int) else 0) + value
    return added


def complete_tool_usage(counts: Counts) -> dict[str, int | Counts]:
    return added_counts(_NO_TOOLS, counts)


def image_usage(usage: Mapping[str, object]) -> Counts:
    """Counts of an images API's answer; without details, all input tokens are text."""
    input_tokens, output_tokens = token_count(usage.get("input_tokens")), token_count(usage.get("output_tokens"))
    counts: dict[str, int | Counts] = {
        "input_tokens": input_tokens,
        "input_tokens_details": _image_details(usage.get("input_tokens_details")) or {"text_tokens": input_tokens},
        "output_tokens": output_tokens,
        "total_tokens": token_count(usage.get("total_tokens")) or input_tokens + output_tokens,
    }
    if details := _image_details(usage.get("output_tokens_details")):
        counts["output_tokens_details"] = details
    return counts


def _image_details(details: object) -> dict[str, int]:
    if not isinstance(details, Mapping):
        return {}
    return {name: token_count(details.get(name)) for name in ("image_tokens", "text_tokens")}


# Regardless of size; vision models use some hundreds to two thousand tokens per image.
TOKENS_PER_MEDIA_ITEM = 1000
_MESSAGE_TOKENS = 4  # a message's role and delimiters
_SAMPLE_LENGTH = 100_000  # characters; the rest is extrapolated

# Scripts without spaces (Chinese, Japanese, Korean, Thai and others), and emoji.
_WIDE = r"\u0e00-\u0fff\u1100-\u11ff\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef\U00010000-\U0010ffff"
_TOKENS = re.compile(
    r"[A-Za-z]{1,7}|[0-9]{1,3}|[!-/:-@\[-`{-~]{1,2}"  # words, numbers, punctuation
    r"|\s{2,16}|\n|(?<=\s)\s"  # white space, except for a single space
    rf"|[{_WIDE}]|[^\s!-~{_WIDE}]{{1,3}}"
)


def estimate(text: str) -> int:
    sample = text[:_SAMPLE_LENGTH]
    tokens = _tokens(sample)
    return tokens * len(text) // len(sample) if len(text) > len(sample) else tokens


def _tokens(text: str) -> int:
    return len(_TOKENS.findall(text))


def estimate_json(value: object) -> int:
    """
    All strings in a JSON value, without field names.

    With many strings, counts only the start of each, which costs no more than one long string.
    """
    texts: list[str] = []
    others = _collect(value, texts)
    length = sum(map(len, texts))
    if length <= _SAMPLE_LENGTH:
        return others + sum(map(_tokens, texts))
    share = _SAMPLE_LENGTH / length
    sample = [text[: math.ceil(len(text) * share)] for text in texts]
    # A single space between strings is not counted.
    return others + _tokens(" ".join(sample)) * length // sum(map(len, sample))


def _collect(value: object, texts: list[str]) -> int:
    others = 0
    values = [value]
    while values:
        node = values.pop()
        if isinstance(node, str):
            texts.append(node)
        elif isinstance(node, dict):
            for name, inner in node.items():
                if name in DATA and inner:
                    others += TOKENS_PER_MEDIA_ITEM
                else:
                    values.append(inner)
        elif isinstance(node, Mapping):
            values.append(dict(node))
        elif isinstance(node, Iterable):
            values.extend(node)
        elif node is not None:
            others += 1
    return others


DATA = frozenset({"data", "file_data", "file_url", "image_url", "input_audio", "video_url"})


def conversation_of(body: JSONMapping) -> Sequence[Any]:
    """A request's messages or items; other bodies are one message."""
    for name in ("messages", "input"):
        if name in body:
            conversation: Sequence[Any] = body[name] or ()
            return [conversation] if isinstance(conversation, str) else conversation
    rest = {name: value for name, value in body.items() if name not in _COUNTED_SEPARATELY}
    return [rest] if rest else ()


_INSTRUCTIONS = ("instructions", "system")
_COUNTED_SEPARATELY = {*_INSTRUCTIONS, "tools", "model"}


def estimate_prompt(body: JSONMapping) -> int:
    conversation = conversation_of(body)
    tokens = (_MESSAGE_TOKENS - 1) * len(conversation) + estimate_json(conversation)  # the role is counted as a text
    tokens += sum(_MESSAGE_TOKENS + estimate_json(body[name]) for name in _INSTRUCTIONS if body.get(name))
    if tools := body.get("tools"):
        tokens += estimate(to_json(tools))
    return tokens
