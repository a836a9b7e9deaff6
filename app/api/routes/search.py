"""Codex's search commands: `POST /alpha/search`."""

from __future__ import annotations

from contextlib import closing

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.dependencies import APIDependencies
from app.api.json_response import json_response
from app.api.openapi import api_router, request_body
from app.api.request_body import read_body
from app.api.uvicorn.disconnect import CancelOnDisconnect, client_disconnected
from app.core.usage import estimated_usage
from app.tools.web_search import WebSearchTool
from app.tools.web_search.commands import SearchRequest, run_commands

TOOL = "web_search"  # also stands for model and backend in usage


def search_routes(api: APIDependencies, search: WebSearchTool) -> APIRouter:
    router = api_router("search")

    @router.post("/alpha/search", summary="Search the web (Codex)", openapi_extra=request_body(SearchRequest))
    async def run(request: Request) -> Response:
        caller = api.caller(request.headers, TOOL)
        admission = await api.admit(caller, request.scope)
        body = await read_body(request, SearchRequest, api.body_limits)
        with closing(admission):
            await admission.acquire_slots()
            with CancelOnDisconnect(request.scope, request.receive):
                found = await run_commands(search, body, caller.owner, caller.access)
                for _ in body.commands.search_query or ():
                    admission.charge_request(TOOL, TOOL, estimated_usage(()))
                return json_response(found)
            return client_disconnected()

    return router
