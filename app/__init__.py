"""Antiphon: the Open Responses API, answered by any model server."""

import sys

__version__ = "0.2.0"

# Where rich is installed, httpx would import its command line with it: 3 MB in each process, and 40 ms of its start.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
