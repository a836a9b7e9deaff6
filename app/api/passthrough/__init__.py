"""The backend's other endpoints, passed through byte for byte: see docs/passthrough.md."""
