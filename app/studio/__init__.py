"""The studio: a page for talking to a model and inspecting its events, served by `app.api.routes.studio`."""
