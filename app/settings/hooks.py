"""The table `[hooks]` in the TOML file: a policy service."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from app.settings.auth import web_url


class HookSettings(BaseModel):
    """A policy service for the input and output of models."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    input_url: Annotated[str, AfterValidator(web_url)] | None = None
    """Where input is sent by POST before a model sees it: requests, results and lists of tools, descriptions of images.
    Files are not reviewed while they are indexed."""
    output_url: Annotated[str, AfterValidator(web_url)] | None = None
    """URL for output items, sent by POST before the caller receives them."""
    mode: Literal["block", "observe"] = "block"
    """`block`: wait for the decision and apply it. `observe`: only log it."""
    timeout: Annotated[float, Field(gt=0, le=60)] = 2.0
    """Timeout for a decision, in seconds."""
    fail: Literal["closed", "open"] = "closed"
    """Result without a decision: `closed` rejects with a 503, `open` allows."""

    @model_validator(mode="after")
    def _has_url(self) -> HookSettings:
        if not (self.input_url or self.output_url):
            raise ValueError("must have `input_url` or `output_url`")
        return self
