"""Builds the hosted tools with tables in the settings."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

from app.loading import import_object
from app.settings import Settings, SettingsError
from app.settings.loading import WORKERS_DIRECTORY, environment
from app.tools import TOOLS, HostedTool, LinkedTool, PreparingTool, ToolHost
from app.tools.search import ToolSearch


def build_tools(settings: Settings) -> dict[str, HostedTool]:
    """Raises `SettingsError` with every problem."""
    tools, problems = try_to_build_tools(settings)
    if problems:
        raise SettingsError(problems)
    return tools


def try_to_build_tools(settings: Settings) -> tuple[dict[str, HostedTool], list[str]]:
    """Return the valid tools by table name, and the problems in other tables."""
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
    problems: list[str] = []
    for name, table in settings.tool_tables().items():
        table = dict(table)
        path = table.pop("tool", TOOLS.get(name))
        if not isinstance(path, str):
            problems.append(
                f"tools.{name}: must be one of {', '.join(sorted(TOOLS))}, or have an import path in `tool`"
            )
            continue
        try:
            tools[name] = import_object(path).from_settings(table, host)
        except (ValueError, ImportError, AttributeError) as error:
            problems.append(f"tools.{name}: {error}")
    tools.setdefault("tool_search", ToolSearch())  # needs no settings
    for tool in tools.values():
        if isinstance(tool, LinkedTool):
            tool.link(tools)
    return tools, problems


async def prepare_tools(settings: Settings) -> list[str]:
    """Check the tools' requirements before the server starts, and return warnings; raises `SettingsError`."""
    warnings: list[str] = []
    for name, tool in build_tools(settings).items():
        if isinstance(tool, PreparingTool):
            async with aclosing(tool):
                try:
                    warnings += [f"tools.{name}: {warning}" for warning in await tool.prepare() or ()]
                except ValueError as error:
                    raise SettingsError([f"tools.{name}: {error}"]) from None
    return warnings
