"""Builds the application's parts from the settings; only these modules know the concrete backends, stores and tools."""
