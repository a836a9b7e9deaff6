"""Routes for individual hosted tools."""
