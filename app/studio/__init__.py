"""The studio: a page for talking to a model and inspecting its events."""
