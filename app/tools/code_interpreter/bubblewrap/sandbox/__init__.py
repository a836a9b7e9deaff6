"""Programs copied into a sandbox and run by the Python under `/usr`, so they use only the standard library."""
