"""Routes with endpoints analysed on first use."""

from __future__ import annotations

import subprocess
import sys

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from app.api.openapi import LazyRoute
from app.main import create_app
from tests.support.serving import settings


def is_analysed(route: APIRoute) -> bool:
    return "dependant" in vars(route)


def test_application_that_is_built_has_analysed_no_endpoint() -> None:
    app = create_app(settings(tools={"file_search": {"store_url": "sqlite:///not-used/files.db"}}))
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) > 50
    assert [route.path for route in routes if is_analysed(route)] == []


def test_analysis_does_not_import_pydantic_v1_and_leaves_it_importable() -> None:
    program = (
        "import sys; from app.api.openapi import LazyRoute\n"
        "LazyRoute('/', lambda name: None).dependant; print('pydantic.v1' in sys.modules)\n"
        "import pydantic.v1; LazyRoute('/', lambda name: None).dependant; print('pydantic.v1' in sys.modules)"
    )
    outcome = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert outcome.stdout.split() == ["False", "True"], outcome.stderr


def test_lazy_route_is_an_ordinary_route_once_it_is_needed() -> None:
    def endpoint(name: str, size: int = 1) -> None:
        """A description."""

    lazy, ordinary = APIRouter(route_class=LazyRoute, tags=["x"]), APIRouter(tags=["x"])
    for router in (lazy, ordinary):
        router.delete("/things/{name}", summary="Delete a thing")(endpoint)
    (one,), (other,) = lazy.routes, ordinary.routes
    assert isinstance(one, APIRoute) and isinstance(other, APIRoute)
    assert (one.path, one.methods, one.name) == (other.path, other.methods, other.name)
    assert one.include_in_schema and not is_analysed(one)
    assert not hasattr(one, "no_such_attribute")
    assert is_analysed(one) and vars(one).keys() == vars(other).keys()

    documents = []
    for router in (lazy, ordinary):
        app = FastAPI()
        app.include_router(router)
        documents.append(app.openapi())
    assert documents[0] == documents[1]
