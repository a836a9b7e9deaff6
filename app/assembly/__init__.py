"""Builds the application's parts from the settings. Only these modules know the concrete backends, stores and tools."""
