"""The checks, one module for each group or two; the modules register their rows, in this order."""

from __future__ import annotations

from app.verify.checks import schema, stream  # noqa: F401
from app.verify.rows import CHECKS

ALL_CHECKS = tuple(CHECKS)
