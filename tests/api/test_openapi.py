"""The description of the server: valid by its own specification, and complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from app.main import create_app
from tests.support.serving import settings


def test_openapi_document_is_valid(tmp_path: Path) -> None:
    files = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    document = create_app(settings(tools=files)).openapi()
    validate(document)
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids))


def test_openapi_schemas_of_bodies_are_made_for_the_document_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def generate(models: Sequence[tuple[type[BaseModel], JsonSchemaMode]], **options: Any) -> object:
        made.extend(model.__name__ for model, _ in models)
        return models_json_schema(models, **options)

    monkeypatch.setattr("app.api.openapi.models_json_schema", generate)
    app = create_app(settings())
    assert made == []
    schemas = app.openapi()["components"]["schemas"]
    assert {"CreateResponse", "CreateConversation"} <= set(made) <= schemas.keys()
    assert schemas["CreateResponse"]["properties"].keys() >= {"model", "input", "tools"}


def test_openapi_document_has_the_endpoints_passed_through() -> None:
    paths = create_app(settings()).openapi()["paths"]
    for path, media_type in (
        ("chat/completions", "application/json"),
        ("embeddings", "application/json"),
        ("audio/transcriptions", "multipart/form-data"),
    ):
        operation = paths[f"/v1/{path}"]["post"]
        assert operation["requestBody"]["content"][media_type]["schema"]["required"] == ["model"]
        assert operation["summary"] and operation["tags"]
    for path in ("messages", "messages/count_tokens"):
        schema = paths[f"/v1/{path}"]["post"]["responses"]["default"]["content"]["application/json"]["schema"]
        assert schema["required"] == ["type", "error"] and "code" not in schema["properties"]["error"]["properties"]
    assert "/v1/embeddings" not in create_app(settings(passthrough=False)).openapi()["paths"]


def test_openapi_document_is_the_same_for_all_applications(tmp_path: Path) -> None:
    """The first application does not modify shared parts."""
    files = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    first, second = (create_app(settings(tools=files)).openapi() for _ in range(2))
    assert first == second and first["components"]["schemas"]
