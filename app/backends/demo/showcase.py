from __future__ import annotations

import re

from app.backends.server.errors.classification import failure
from app.errors import BackendError

PIECE_PAUSE = 0.012  # seconds between deltas, to make streaming visible

MARKDOWN = """\
An **antiphon** is sung as *call and response*. Here is how an answer comes to you:

1. The client asks `POST /v1/responses`.
2. Antiphon asks the backend, in Chat Completions.
3. The chunks of its answer become events.

| Event | Says |
|---|---|
| `response.created` | the request is good |
| `response.output_text.delta` | a piece of the text |
| `response.completed` | the whole response, with its usage |

```python
with client.responses.stream(model="demo", input="Hello!") as stream:
    for event in stream:
        print(event.type)
```

> Open the inspector to see the events of this answer.
"""

# 240 x 150 pixels.
_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAPAAAACWBAMAAAAS1hjmAAAAD1BMVEUfXHM9f5aGx936+fbmvXLB2uBlAAAB4klEQVR42u3Y25HCMAyF4dOCJh"
    "UkWwGXDjb917TcEgIbO1iSrQGOnpn55pcJQ4xD0IAwYcKECRMmTJgw4TeAj+N1WsOTuyV7w+NifhvCxyU8toMf3ayMaoveWDZqBueSUTM4l4yq"
    "wZlkVA3OJKNucDr5E+BVN7lrVA5OJhP2PuLkIb8/nNp0ateECRMmTJjwB8Pf90eA/zLbwWFvEl/40hb2fhx3IxB2BxJ36xN2zxV3s+d3lznM81"
    "O+bPXt7X54nMLm/OfwSm1RtfWGfj+sjd+3AS/nFh21Gh6G2jIKXTcZpa6XjGLXSUa56yND4brIeO359X+eoXIdZCgW7bJs6Fy7DNWiHZYNrWuV"
    "oVu0fdlQBxuToQ42JkPv2mSoF21cNgzBpmRYgi3JsARbkmEKXkveyWK2YaX7L1mep8vD2uCnZFmbLger3WWypKZLwvrge/JOMpOCDe6UnHVXZF"
    "iDb8myNd0abHIvySKlMszB52SRYhnm4FOySLkMe/AgopBhDxbRyDAHi6hkHFq6CxnG4L4Qnn9J0NidZbR2JxktD3h5zGju3mS0XvS0bLQPviYj"
    "wL3IaL/o67IREXxORoh7khGx6PMgJlgN90Gw3VXCEgT3UbAEwb0LzOFwOBwOh8P53PkDYRS8ddfY6bQAAAAASUVORK5CYII="
)
PICTURE = f"Here is a picture:\n\n![Hills under a sun](data:image/png;base64,{_PNG})\n"

BREAKS = "This answer will break off in a moment, as an answer does when its server goes away. Count with me: one, two,"

_FAIL = re.compile(r"^fail\b(?P<how>.*)", re.IGNORECASE | re.DOTALL)
_KINDS = {
    "429": "rate",
    "rate": "rate",
    "quota": "quota",
    "503": "overloaded",
    "overload": "overloaded",
    "504": "timeout",
    "timeout": "timeout",
    "context": "context",
    "filter": "filter",
}


def requested_failure(prompt: str) -> BackendError | None:
    """The error requested by a prompt such as "Fail with a 429", or None."""
    if (match := _FAIL.search(prompt)) is None:
        return None
    how = match["how"].lower()
    return failure(next((kind for word, kind in _KINDS.items() if word in how), "failure"), _MESSAGE)


def fails_midway(prompt: str) -> bool:
    match = _FAIL.search(prompt)
    return match is not None and "middle" in match["how"].lower()


_MESSAGE = "The demo was asked to fail, and this is how it looks."
