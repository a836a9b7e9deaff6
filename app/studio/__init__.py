"""The studio: a page to talk to a model and to see what happens. Its files are served by `app.api.routes.studio`."""
