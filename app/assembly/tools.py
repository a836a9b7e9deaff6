"""Builds the hosted tools that the settings have tables for."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

from app.loading.importing import import_object
from app.settings import Settings, SettingsError
from app.settings.loading import WORKERS_DIRECTORY, environment
from app.tools import TOOLS, HostedTool, LinkedTool, PreparingTool, ToolHost
from app.tools.search import ToolSearch


def build_tools(settings: Settings) -> dict[str, HostedTool]:
    """Return the configured hosted tools by the names of their tables; raises `SettingsError`."""
    limits = settings.tool_limits()
    host = ToolHost(
        backends=settings.served(),
        directory=settings.config.expanduser().parent if settings.config else Path(),
        environment=environment(),
        max_result_chars=limits.max_result_chars,
        tables=settings.tool_tables(),
        store_url=settings.store_url,
        workers_directory=Path(directory) if (directory := environment().get(WORKERS_DIRECTORY)) else None,
    )
    tools: dict[str, HostedTool] = {}
    for name, table in settings.tool_tables().items():
        table = dict(table)
        path = table.pop("tool", TOOLS.get(name))
        if not isinstance(path, str):
            raise SettingsError([f"tools.{name}: there is no such tool; known are {', '.join(sorted(TOOLS))}"])
        try:
            tools[name] = import_object(path).from_settings(table, host)
        except (ValueError, ImportError, AttributeError) as error:
            raise SettingsError([f"tools.{name}: {error}"]) from None
    tools.setdefault("tool_search", ToolSearch())  # needs no settings
    for tool in tools.values():
        if isinstance(tool, LinkedTool):
            tool.link(tools)
    return tools


async def prepare_tools(settings: Settings) -> list[str]:
    """Check what the tools need before the server starts, and return warnings; raises `SettingsError`."""
    warnings: list[str] = []
    for name, tool in build_tools(settings).items():
        if isinstance(tool, PreparingTool):
            async with aclosing(tool):
                try:
                    warnings += [f"tools.{name}: {warning}" for warning in await tool.prepare() or ()]
                except ValueError as error:
                    raise SettingsError([f"tools.{name}: {error}"]) from None
    return warnings
