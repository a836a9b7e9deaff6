"""Who listens: HTTP and, beside it, everything that is about callers rather than about responses."""
