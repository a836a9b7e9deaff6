from __future__ import annotations

from collections.abc import Iterator

from app.core.types import JSONObject, json_objects

# For files that a server's tool read or wrote.
_NATIVE = frozenset({"file_citation", "container_file_citation", "file_path"})


def flat_annotations(annotations: object) -> Iterator[JSONObject]:
    """URL citations in Responses API form; Chat Completions nests them in `url_citation`."""
    for annotation in annotations if isinstance(annotations, list) else ():
        if not isinstance(annotation, dict):
            continue
        if str(annotation.get("type")) in _NATIVE:
            yield annotation
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


def flat_logprobs(tokens: object) -> list[JSONObject]:
    """Some servers omit the bytes, send null, or add fields."""
    return [
        {**_logprob(token), "top_logprobs": [_logprob(top) for top in json_objects(token.get("top_logprobs"))]}
        for token in json_objects(tokens)
    ]


def _logprob(token: JSONObject) -> JSONObject:
    text = str(token.get("token") or "")
    sent, logprob = token.get("bytes"), token.get("logprob")
    is_valid = isinstance(sent, list) and all(type(byte) is int for byte in sent)
    encoded = sent if is_valid else list(text.encode("utf-8", "replace"))
    return {"token": text, "logprob": logprob if type(logprob) in (int, float) else 0.0, "bytes": encoded}


def _count(value: object) -> int:
    return max(0, int(value)) if isinstance(value, int) else 0
