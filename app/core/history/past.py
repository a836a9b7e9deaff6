from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from app.core.history.compaction import has_compaction, without_compacted
from app.core.history.images import ImageReference, references
from app.core.history.rewrites import UNCHANGED, Configuration, rewrite_items
from app.core.history.turns import Turn
from app.core.stream.event_builder import Upstream
from app.core.types.frozen import frozen
from app.core.types.request import Item
from app.errors import Warnings


@frozen
class Past:
    """A stored conversation, oldest first; immutable, because requests share it."""

    response_ids: Sequence[str] = ()
    items: Sequence[Item] = ()  # in stored form
    sent: Sequence[Item] = ()  # as sent to the model: rewritten, and without compacted items
    upstream: dict[str, Upstream] = field(default_factory=dict)
    model: str | None = None
    has_unstored: bool = False
    configuration: Configuration = UNCHANGED  # for later responses
    warnings: Sequence[str] = ()  # about items that cannot be sent
    images: Mapping[str, ImageReference] = field(default_factory=dict)

    @staticmethod
    def of(turns: Iterable[Turn]) -> Past:
        return Past().extended(turns)

    def extended(self, turns: Iterable[Turn]) -> Past:
        response_ids, items, upstream = [*self.response_ids], [*self.items], {**self.upstream}
        model, has_unstored = self.model, self.has_unstored
        warnings, images = Warnings(), {**self.images}
        added: list[Item] = []
        for turn in turns:
            new = turn.items
            response_ids.append(turn.response["id"])
            items += new
            added += rewrite_items(new, warnings)
            upstream |= turn.upstream
            images |= references(turn)
            model = turn.response.get("model", model)
            has_unstored = has_unstored or turn.response.get("store") is False
        configuration = self.configuration.updated(added)
        before = self
        if has_compaction(added):
            before, added = Past(), without_compacted(rewrite_items(items, Warnings()))
        return Past(
            response_ids=response_ids,
            items=items,
            sent=[*before.sent, *added],
            upstream=upstream,
            model=model,
            has_unstored=has_unstored,
            configuration=configuration,
            warnings=[*self.warnings, *warnings],
            images=images,
        )

    def items_by_id(self) -> dict[str, Item]:
        """The first version, if a client repeats an item."""
        return {item["id"]: item for item in reversed(self.items) if isinstance(item.get("id"), str)}
