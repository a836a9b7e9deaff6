"""Objects named by import path, optional dependencies, and messages for invalid settings."""
