"""Antiphon: the Open Responses API, answered by any model server."""

import sys

__version__ = "0.2.0"

# With rich installed, httpx would import its command line: 3 MB per process, and 40 ms of startup.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
