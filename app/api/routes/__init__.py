"""HTTP routes, a module per resource."""
