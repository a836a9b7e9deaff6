"""The settings of a policy service: the table `[hooks]` of the TOML file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from app.settings.auth import web_url


class HookSettings(BaseModel):
    """A policy service that reviews the input and the output of models."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    input_url: Annotated[str, AfterValidator(web_url)] | None = None
    """Where input is sent by POST before a model sees it."""
    output_url: Annotated[str, AfterValidator(web_url)] | None = None
    """Where output items are sent by POST before the caller sees them."""
    mode: Literal["block", "observe"] = "block"
    """`block`: wait for the decision and apply it. `observe`: only log it."""
    timeout: Annotated[float, Field(gt=0, le=60)] = 2.0
    """Seconds for one decision."""
    fail: Literal["closed", "open"] = "closed"
    """What happens without a decision: `closed` refuses with a 503, `open` allows."""

    @model_validator(mode="after")
    def _has_url(self) -> HookSettings:
        if not (self.input_url or self.output_url):
            raise ValueError("must have `input_url` or `output_url`")
        return self
