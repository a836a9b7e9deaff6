"""Removal of repeated conversation from the input."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.history.context import drop_repetitions
from app.errors import Warnings

CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"place": "Paris", "days": 1}'}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "Sunny."}
QUESTION = {"type": "message", "role": "user", "content": "How is the weather?"}
LOOKING = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look it up."}]}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "antiphon1.x"}
PATCH = {"type": "custom_tool_call", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin Patch"}
HISTORY = [QUESTION, COMPACTION, {**LOOKING, "id": "msg_1"}, {**CALL, "id": "fc_1", "status": "completed"}, PATCH]
OTHER = {**CALL, "arguments": '{"place": "Oslo"}'}


@pytest.mark.parametrize(
    ("new", "kept"),
    [
        ([CALL, RESULT], [RESULT]),
        ([{**CALL, "arguments": '{"days":1,"place":"Paris"}'}, RESULT], [RESULT]),
        ([{**LOOKING, "content": "I look it up."}, CALL, RESULT], [RESULT]),
        ([COMPACTION, RESULT], [RESULT]),
        ([PATCH, RESULT], [RESULT]),
        ([QUESTION, RESULT], [RESULT]),
        ([QUESTION, CALL, RESULT], [RESULT]),
        # A separate call with the same id, and a compaction that is new or ambiguous.
        ([OTHER, RESULT], [OTHER, RESULT]),
        ([{**COMPACTION, "id": "cmp_2"}, RESULT], [{**COMPACTION, "id": "cmp_2"}, RESULT]),
        ([{**COMPACTION, "id": None}, RESULT], [{**COMPACTION, "id": None}, RESULT]),
        # Words repeated without or after the repeated part.
        ([LOOKING, RESULT], [LOOKING, RESULT]),
        ([CALL, RESULT, LOOKING], [RESULT, LOOKING]),
        ([QUESTION], [QUESTION]),
        # Items with unknown types, whatever their fields.
        (
            [{"type": "lab:call", "call_id": ["call_1"]}, CALL, RESULT],
            [{"type": "lab:call", "call_id": ["call_1"]}, RESULT],
        ),
    ],
)
def test_repetition_of_the_conversation_is_left_out(new: list[dict[str, Any]], kept: list[dict[str, Any]]) -> None:
    warnings = Warnings()
    assert drop_repetitions(HISTORY, new, warnings) == kept
    assert bool([*warnings]) == (new != kept)


def test_result_that_is_repeated_with_its_call_is_left_out() -> None:
    more, result = {**CALL, "call_id": "call_3"}, {**RESULT, "call_id": "call_3", "output": "Rainy."}
    history = [*HISTORY, RESULT, more]
    assert drop_repetitions(history, [CALL, RESULT, more, result], Warnings()) == [result]
    corrected = {**RESULT, "output": "Rainy."}
    assert drop_repetitions(history, [CALL, corrected, more, result], Warnings()) == [corrected, result]
