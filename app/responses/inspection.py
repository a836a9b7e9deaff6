"""Read-only views of responses: token counts, lists, chains and their labels, translated requests."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

import orjson

from app.core.history.context import RequestContext
from app.core.history.turns import Turn, request_of
from app.core.ids import chain_key, partition_of
from app.core.prompt_template import Prompts
from app.core.types import JSONMapping, JSONObject
from app.core.types.request import CreateResponse
from app.core.usage import estimate_prompt
from app.errors import InvalidRequest
from app.responses import Responses
from app.responses.run import Caller
from app.responses.tool_loop.sessions import declared_tools, open_tools
from app.stores import Change
from app.tools import Declaration, HostedFunction, HostedTool, OutcomeStatus, Report

_SCANNED = 5000  # a caller's newest entries, grouped into chains
_SCANNED_AT_ONCE = 1000

HOSTED_LEFT_OUT = "The functions of hosted tools, which are listed when the model is queried, are not shown here."


MAX_LABELS = 1000  # names and pins of chains per owner; the oldest are evicted
MCP_LISTINGS = 4  # concurrent; each can start a program
MAX_SEARCHED = 1000  # entries per page
_FACET_VALUES = 50
_SEARCHED_TOGETHER = 100  # entries searched before other requests are served


class ResponseFilter(NamedTuple):
    """None accepts anything; names are globs."""

    status: str | None = None
    model: str | None = None
    tool: str | None = None  # see `tools_used`
    backend: str | None = None
    key: str | None = None
    delivery: str | None = None
    text: str | None = None  # must occur at the start of the message or answer
    conversation: str | None = None
    after: int | None = None  # Unix time
    before: int | None = None
    metadata: tuple[tuple[str, str], ...] = ()  # required names and values

    def accepts(self, entry: JSONMapping) -> bool:
        conversation = (entry.get("conversation") or {}).get("id")
        metadata = entry.get("metadata") or {}
        text = f"{entry.get('preview')}\n{entry.get('answer') or ''}"
        return (
            self.status in (None, entry.get("status"))
            and (self.model is None or fnmatchcase(str(entry.get("model")), self.model))
            and (self.tool is None or any(fnmatchcase(tool, self.tool) for tool in entry.get("tools") or ()))
            and self.backend in (None, entry.get("backend"))
            and self.key in (None, entry.get("key"))
            and self.delivery in (None, entry.get("delivery"))
            and (self.text is None or self.text.casefold() in text.casefold())
            and self.conversation in (None, conversation)
            and (self.after or 0) <= entry["created_at"] <= (self.before or math.inf)
            and all(metadata.get(name) == value for name, value in self.metadata)
        )


FACETS = ("status", "model", "tool", "backend", "key", "delivery")  # filters with a list of values


class Inspection:
    def __init__(self, responses: Responses) -> None:
        self._responses = responses
        self._mcp_listings = asyncio.Semaphore(MCP_LISTINGS)

    async def recent(
        self, caller: Caller, limit: int, after: str | None = None, matches: ResponseFilter | None = None
    ) -> dict[str, object]:
        """
        A page of a caller's responses, newest first; raises `InvalidRequest` for an unknown `after`.

        A filter searches at most `MAX_SEARCHED` entries per page, so the page can be incomplete or empty; `last_id` is
        the last entry searched.
        """
        data: list[JSONObject] = []
        last, searched, more = after, 0, False
        size = limit + 1 if matches is None else _SEARCHED_TOGETHER
        async for entry in self._entries(caller, size, after):
            if len(data) == limit or searched == MAX_SEARCHED:
                more = True
                break
            last, searched = entry["id"], searched + 1
            if matches is None or matches.accepts(entry):
                data.append(entry)
        return _page(data, more, last if more else None)

    async def _entries(self, caller: Caller, size: int, after: str | None = None) -> AsyncGenerator[JSONObject, None]:
        """
        A caller's entries, newest first, read in pages of `size`, between which other requests are served.

        Raises `InvalidRequest` for an unknown `after`.
        """
        records = await self._responses.store.recent(caller.owner, limit=size, after=after)
        if records is None:
            raise InvalidRequest(f"Invalid 'after': response with id '{after}' not found.", param="after")
        while records:
            for entry in map(orjson.loads, records):
                yield entry
            if len(records) < size:
                break
            records = await self._responses.store.recent(caller.owner, limit=size, after=entry["id"])

    async def facets(self, caller: Caller, matches: ResponseFilter | None = None) -> dict[str, object]:
        """
        Count the facet values of a caller's newest `MAX_SEARCHED` responses, most frequent first.

        A facet's counts ignore its own filter, to show alternatives. `searched` is the number of responses; without
        `complete`, older responses exist.
        """
        matches = matches or ResponseFilter()
        changes: dict[str, JSONObject] = {name: {name: None} for name in FACETS}
        filters = {name: matches._replace(**change) for name, change in changes.items()}
        counts: dict[str, Counter[object]] = {name: Counter() for name in FACETS}
        searched, complete = 0, True
        async for entry in self._entries(caller, _SEARCHED_TOGETHER):
            if searched == MAX_SEARCHED:
                complete = False
                break
            searched += 1
            for name in FACETS:
                if filters[name].accepts(entry):
                    values = entry.get("tools") or () if name == "tool" else (entry.get(name),)
                    counts[name].update(value for value in values if value)
        data = {
            name: [{"value": value, "count": number} for value, number in counter.most_common(_FACET_VALUES)]
            for name, counter in counts.items()
        }
        return {"object": "antiphon.facets", "searched": searched, "complete": complete, "data": data}

    async def chains(
        self,
        caller: Caller,
        limit: int,
        after: str | None = None,
        text: str = "",
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> dict[str, object]:
        """
        A page of a caller's chains: pinned first, then the most recently continued.

        `text` must occur in the name or a message, `metadata` in a response. Raises `InvalidRequest` for an unknown
        `after`, the id of a chain's newest response.
        """
        chains = await self._chains(caller, metadata)
        wanted = " ".join(text.casefold().split())
        if not wanted:
            chains.sort(key=lambda chain: not chain["pinned"])
        start = next((index for index, chain in enumerate(chains, 1) if chain["id"] == after), None) if after else 0
        if start is None:
            raise InvalidRequest(f"Invalid 'after': chain with newest response '{after}' not found.", param="after")
        found = [chain for chain in chains[start:] if wanted in chain.pop("texts")]
        return _page(found[:limit], len(found) > limit)

    async def label_chain(self, response_id: str, changes: Mapping[str, object], caller: Caller) -> dict[str, object]:
        """Change `name`, `pinned` or both. Raises `NotFound`, `TooManyRequests`."""
        responses, partition = self._responses, _labels_partition(caller)
        await responses.stored.retrieve(response_id, caller)
        key = chain_key(response_id) or ""
        labels = await self._labels(caller)
        label = {"name": None, "pinned": False, **labels.get(key, {}), **changes, "changed_at": int(time.time())}
        if label["name"] or label["pinned"]:
            oldest = sorted(labels, key=lambda each: labels[each]["changed_at"])
            evicted = [each for each in oldest if each != key][: max(0, len({*labels, key}) - MAX_LABELS)]
            await responses.quota.apply(caller.access, Change(partition, {key: orjson.dumps(label)}, evicted))
        else:
            await responses.store.delete(partition, key)
        return {"object": "antiphon.chain", "id": response_id, "name": label["name"], "pinned": label["pinned"]}

    async def _labels(self, caller: Caller) -> dict[str, JSONObject]:
        """Labels by chain: `{"name": str | None, "pinned": bool, "changed_at": int}`. They share a partition."""
        records = await self._responses.store.all(_labels_partition(caller))
        return {key: orjson.loads(record) for key, record in records.items()}

    async def _chains(self, caller: Caller, metadata: tuple[tuple[str, str], ...]) -> list[JSONObject]:
        """Group a caller's newest responses into chains; `texts` are names and the beginnings of messages."""
        labels = await self._labels(caller)
        chains: dict[str | None, JSONObject] = {}
        wanted: set[str | None] = set()
        matches = ResponseFilter(metadata=metadata)
        scanned = 0
        async for entry in self._entries(caller, _SCANNED_AT_ONCE):
            key = chain_key(entry["id"])
            newest = {name: entry[name] for name in ("id", "status", "model", "background")}
            times = {"created_at": entry["created_at"], "updated_at": entry["created_at"]}
            label = labels.get(key or "", {})
            name, pinned = label.get("name"), label.get("pinned", False)
            texts = f"{(name or '').casefold()}\n"
            shown = {"title": "", "name": name, "pinned": pinned, "responses": 0, "texts": texts}
            chain = chains.setdefault(key, {"object": "antiphon.chain", **newest, **times, **shown})
            chain["created_at"] = min(chain["created_at"], entry["created_at"])
            chain["title"] = entry["preview"] or chain["title"]  # the last entry is the chain's first message
            chain["responses"] += 1
            chain["texts"] += f"{entry['preview'].casefold()}\n"
            if matches.accepts(entry):
                wanted.add(key)
            scanned += 1
            if scanned == _SCANNED:
                break
        return [chain for key, chain in chains.items() if key in wanted]

    async def count_tokens(self, request: CreateResponse, caller: Caller) -> tuple[int, bool]:
        """Input tokens, and whether the backend counted them."""
        responses = self._responses
        request, context = await self._unstored(request, caller)
        preparation = responses.preparation(request, context, caller, responses.options.model(request, context, caller))
        model_request, encoded = await preparation.first_request()
        count = await responses.backend.count_tokens(model_request)
        if count is not None:
            return count, True
        return estimate_prompt(encoded.body), False

    async def _unstored(self, request: CreateResponse, caller: Caller) -> tuple[CreateResponse, RequestContext]:
        """
        A request with its prompt and conversation, as if unstored. Raises the errors of creating the response, also for
        hosted tools.
        """
        responses = self._responses
        request = responses.options.with_prompt(request)
        context = await responses.context(request.model_copy(update={"store": False}), caller)
        declared_tools(responses.tools, request, caller, context)
        return request, context

    async def chain(self, response_id: str, caller: Caller) -> dict[str, object]:
        """
        The responses up to a stored response, oldest first; raises `NotFound`.

        Each has its own turn's input, additional parameters (`request`), times and cost (`measures`). `earlier` has the
        conversation's preceding items, `forks` the list entries of responses on other paths.
        """
        stored = self._responses.stored
        current = await stored.retrieve(response_id, caller)  # also ends a dead worker's run
        turns = await stored.turns(response_id, caller)
        data = [
            {"response": turn.response, "input": turn.input, "request": turn.request, "measures": turn.measures}
            for turn in turns
            if "object" in turn.response
        ]
        data[-1]["response"] = current
        path = {turn.response["id"] for turn in turns}
        records = await self._responses.store.all(partition_of(caller.owner, response_id) or "")
        others = [Turn.of(record) for name, record in records.items() if name.startswith("resp_") and name not in path]
        forks = [orjson.loads(turn.entry()) for turn in others]
        earlier = [item for turn in turns if "object" not in turn.response for item in turn.items]
        forks.sort(key=lambda fork: fork["created_at"])
        return {"object": "list", "data": data, "earlier": earlier, "forks": forks}

    async def mcp_tools(self, label: str, caller: Caller) -> dict[str, object]:
        """
        List the tools of an operator's MCP server, as for a response. Raises `InvalidRequest` for an unknown server,
        and `PermissionDenied`.
        """
        tool = {"type": "mcp", "server_label": label}
        declaration = Declaration(
            tool=tool,
            secrets=tool,
            param_path="tools[0]",
            owner=caller.owner,
            key_names=caller.key_names,
            access=caller.access,
        )
        listing = _Listing()
        for declared in open_tools(self._responses.tools, {0: declaration}):
            async with self._mcp_listings, declared.session as session:
                listing.functions += await session.functions([], listing)
        tools = [
            {"name": each.name, "description": each.description, "needs_approval": each.needs_approval}
            for each in listing.functions
            if each.namespace == label
        ]
        return {"object": "antiphon.mcp_server", "server_label": label, "tools": tools, "error": listing.error}

    async def translation(self, response_id: str, caller: Caller) -> dict[str, object]:
        """Translate a stored response's request again; raises `NotFound`."""
        turn, context = await self._responses.stored_context(response_id, caller)
        translation = await self._translate(request_of(turn), context, caller)
        if turn.warnings is None:
            return translation
        hosted = [warning for warning in translation["warnings"] if warning == HOSTED_LEFT_OUT]
        return {**translation, "warnings": [*turn.warnings, *hosted]}

    async def preview(self, request: CreateResponse, caller: Caller) -> dict[str, object]:
        """The backend's request; raises the errors of creating the response."""
        request, context = await self._unstored(request, caller)
        return await self._translate(request, context, caller)

    async def _translate(self, request: CreateResponse, context: RequestContext, caller: Caller) -> JSONObject:
        responses = self._responses
        request, hosted = self._without_hosted_tools(request)
        model = responses.options.model(request, context, caller)
        preparation = responses.preparation(request, context, caller, model)
        model_request, encoded = await preparation.first_request()
        sent = responses.backend.translation(model_request)
        warnings = [*context.warnings, *encoded.warnings, *sent.warnings, *hosted]
        return {"object": "antiphon.translation", **sent._asdict(), "warnings": list(dict.fromkeys(warnings))}

    def _without_hosted_tools(self, request: CreateResponse) -> tuple[CreateResponse, list[str]]:
        types = {name for tool in self._responses.tools.values() for name in tool.types}
        own = [tool for tool in request.tools if tool["type"] not in types]
        if len(own) == len(request.tools):
            return request, []
        changes: JSONObject = {"tools": own}
        if request.tool_choice not in ("auto", "none"):
            changes["tool_choice"] = "auto"  # the choice can name a removed tool
        return request.model_copy(update=changes), [HOSTED_LEFT_OUT]


class _Listing(Report):
    """Only records the listing's error."""

    def __init__(self) -> None:
        self.functions: list[HostedFunction] = []
        self.error: str | None = None

    def add(self, item_type: str, **fields: object) -> Report:
        return self

    def close(self, status: OutcomeStatus = "completed", **fields: object) -> None:
        if status == "failed":
            self.error = str(fields.get("error") or "The tools could not be listed.")


def _page(data: list[JSONObject], more: bool, last: str | None = None) -> dict[str, object]:
    ids = [entry["id"] for entry in data]
    last_id = last or (ids[-1] if ids else None)
    return {"object": "list", "data": data, "first_id": ids[0] if ids else None, "last_id": last_id, "has_more": more}


def offered_tools(tools: Mapping[str, HostedTool], caller: Caller) -> list[dict[str, object]]:
    offered: list[dict[str, object]] = []
    for name, tool in tools.items():
        for declaration in tool.declarations(caller.key_names):
            rights = tool.rights(declaration)
            if caller.access.allows_tool(*((str(declaration["type"]), name) if rights is None else rights)):
                offered.append({**declaration})
    return offered


def offers_file_search(tools: Mapping[str, HostedTool], caller: Caller) -> bool:
    """Whether a caller can use file search; its declarations name the caller's own vector stores."""
    types = (("file_search", name) for name, tool in tools.items() if "file_search" in tool.types)
    return any(caller.access.allows_tool(*rights) for rights in types)


def offered_prompts(prompts: Prompts) -> list[dict[str, object]]:
    """Templates, their versions oldest first, without texts."""
    return [
        {
            "id": versions[0].id,
            "versions": [
                {
                    "version": template.version,
                    "variables": [
                        {"name": name, "default": template.defaults.get(name)} for name in template.variables
                    ],
                    "model": template.model,
                }
                for template in versions
            ],
        }
        for versions in prompts.values()
    ]


def _labels_partition(caller: Caller) -> str:
    return f"{caller.owner}:chain_labels"
