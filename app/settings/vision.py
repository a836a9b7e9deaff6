"""The table `[vision]`: the model that describes images for models that accept none."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class VisionSettings(BaseModel):
    """The table `[vision]`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    backend: str = "default"
    """Name of the backend that describes images."""
    model: str
    """The model that describes images."""
    max_images: int = Field(20, ge=1)
    """Images of one response that are described at most; a note takes the place of others."""
    max_output_tokens: int = Field(1000, ge=1)
    """Maximum length of a description."""
    timeout: float = Field(60, gt=0)
    """Seconds that a description may take."""
