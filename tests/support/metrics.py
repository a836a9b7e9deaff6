"""Metrics of a server. A request is counted at its end, which may be after its client has the answer."""

from __future__ import annotations

import asyncio

import httpx


async def counted(http: httpx.AsyncClient, line: str, url: str = "") -> None:
    """Wait until the metrics have a line."""
    async with asyncio.timeout(60):
        while line not in (await http.get(f"{url}/metrics")).text.splitlines():
            await asyncio.sleep(0.01)
