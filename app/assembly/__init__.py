"""Builds the application from the settings. Only these modules know the concrete backends, stores and tools."""
