"""An MCP program with the tool known to the tiny model: `python -m tests.support.mcp_weather`."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("weather")


@server.tool()
def get_weather(location: str) -> str:
    """Get the current weather for a location"""
    return "Sunny, 21C"


if __name__ == "__main__":
    server.run()
