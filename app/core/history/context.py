"""
Combine the stored turns of a conversation and the input of a request into the items that a model is sent.

This is the whole pipeline, in order; `app.responses.context` loads its data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from app.core.history.approvals import NO_DECISIONS, Decisions, answers_approvals, find_decisions
from app.core.history.compaction import has_compaction, is_compaction, without_compacted
from app.core.history.images import ImageReference
from app.core.history.past import Past
from app.core.history.repetitions import drop_repetitions
from app.core.history.rewrites import UNCHANGED, Configuration, rewrite_items
from app.core.history.turns import Turn, check_outputs
from app.core.stream.event_builder import Upstream
from app.core.types.frozen import frozen
from app.core.types.request import CreateResponse, Item
from app.errors import InvalidRequest, Warnings


@frozen
class RequestContext:
    """The conversation that a response is to continue."""

    key: str  # of the chain that the response will be in
    model: str | None  # of the last response
    items: list[Item]  # as a model is sent them, oldest first
    new: list[Item]  # those that the request adds
    added: int  # the number of items at the end of `items` that come from `new`
    upstream: dict[str, Upstream]  # the fields that the backend sent, by item id
    decrypted: dict[str, Upstream]  # the part of it that the request contained in encrypted form
    compacts: bool  # whether a summary is requested instead of an answer
    warnings: Warnings
    decisions: Decisions = NO_DECISIONS  # about calls that need an approval
    configuration: Configuration = UNCHANGED  # by items of the conversation
    images: Mapping[str, ImageReference] = field(default_factory=dict)  # that are stored beside the items, by item id


@frozen
class NewInput:
    """The input of a request, with the items that it refers to and what was encrypted."""

    items: list[Item]
    upstream: dict[str, Upstream] = field(default_factory=dict)  # of the conversation, and of items from elsewhere
    decrypted: dict[str, Upstream] = field(default_factory=dict)  # see `RequestContext`
    related: Sequence[Turn] = ()  # the turns of the chains whose requests for approval it answers
    warnings: Warnings = field(default_factory=Warnings)


def continue_past(past: Past, new_input: NewInput, request: CreateResponse, key: str) -> RequestContext:
    """
    Return the context of a request. `key` is that of the chain that the response will be in.

    Raises `InvalidRequest`, with the field at fault, for input that does not fit the conversation.
    """
    new, warnings = new_input.items, new_input.warnings
    decisions = NO_DECISIONS
    if answers_approvals(new):
        decisions = find_decisions(past.items, new, new_input.upstream, new_input.related)
    if request.conversation:
        known = past.items_by_id()
        new = [item for item in new if str(item.get("id")) not in known]
        if not request.store:
            warnings.add("This turn is not added to the conversation, because `store` is false.")
    if request.store and past.has_unstored:
        warnings.add("This response continues an unstored response, so it can be continued only on this connection.")
    if past.response_ids:
        check_outputs(past.items, new)
        new = drop_repetitions(past.items, new, warnings)
    return join(past, new, new_input, key, decisions)


def join(
    past: Past,
    new: list[Item],
    new_input: NewInput,
    key: str,
    decisions: Decisions = NO_DECISIONS,
) -> RequestContext:
    """Return the context of new items that fit the conversation; a trigger of a compaction is not among its items."""
    compacts = is_compaction(new)
    if compacts:
        new = new[:-1]
        if not past.items and not new:
            raise InvalidRequest("Nothing to compact. Send `input`, or continue a response.", param="input")
    warnings = new_input.warnings
    for warning in past.warnings:
        warnings.add(warning)
    added = rewrite_items(new, warnings)
    items = [*past.sent, *added]
    configuration = past.configuration.updated(added)
    if has_compaction(added):
        items = added = without_compacted(rewrite_items([*past.items, *new], warnings))
    return RequestContext(
        key=key,
        model=past.model,
        items=items,
        new=new,
        added=len(added),
        upstream=new_input.upstream | new_input.decrypted if new_input.decrypted else new_input.upstream,
        decrypted=new_input.decrypted,
        compacts=compacts,
        warnings=warnings,
        decisions=decisions,
        configuration=configuration,
        images=past.images,
    )
