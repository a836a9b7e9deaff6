"""The table `[vision]`: the model that describes images for text-only models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class VisionSettings(BaseModel):
    """The table `[vision]`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    backend: str = "default"
    """Backend for image descriptions."""
    model: str
    """Model for image descriptions."""
    max_images: int = Field(20, ge=1)
    """Maximum number of described images per response; a note replaces others."""
    max_output_tokens: int = Field(1000, ge=1)
    """Maximum length of a description."""
    timeout: float = Field(60, gt=0)
    """Timeout for a description, in seconds."""
