"""Shared by response and file stores: database connections, object storage, URL options, outages."""
