"""The HTTP layer: routes, authentication, rate limits, accounting."""
