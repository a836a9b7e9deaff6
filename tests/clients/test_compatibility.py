"""`docs/compatibility.md` has all Responses API names in `openai` for Node.js."""

from __future__ import annotations

import re

import pytest

from tests.clients.program import installed
from tests.support.api_names import NodeTypes, Roots, names, rows

# Declaration folder: name prefix.
DECLARATIONS = {"responses": "", "beta/responses": "Beta"}
ADDED = {("Fields of a response", "output_text")}  # by the package itself


@pytest.mark.parametrize("folder", DECLARATIONS)
def test_every_name_of_the_package_has_a_row(folder: str) -> None:
    file = installed("openai") / "resources" / folder / "responses.d.ts"
    types, prefix = NodeTypes(file.read_text()), DECLARATIONS[folder]
    roots = Roots(
        items=[f"{prefix}Response{name}" for name in ("InputItem", "Item", "OutputItem")],
        tools=[f"{prefix}Tool"],
        events=[f"{prefix}ResponseStreamEvent", f"{prefix}ResponsesServerEvent"],
        frames=[f"{prefix}ResponsesClientEvent"],
        include=[f"{prefix}ResponseIncludable"],
        responses=[f"{prefix}Response"],
    )
    found = names(types, roots)
    parameters = types.fields("ResponseCreateParamsBase")
    assert len(found) > 200
    assert len(parameters) > 30
    listed = rows()
    assert sorted(found - listed.keys() - ADDED) == []
    known = {re.split(r"[.\[]", name)[0] for heading, name in listed if heading == "Parameters"}
    assert sorted(parameters.keys() - known) == []
