"""The routes of single hosted tools."""
