"""The studio: a page for talking to a model and inspecting its events. Its files are served by `app.api.routes.studio`."""
