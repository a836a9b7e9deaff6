"""The settings table `[tools.web_search]`."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from app.loading import require_packages


class WebSearchSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    provider: str = "searxng"
    """The search service: searxng, brave, tavily, exa, or the import path `package.module:Class` of a provider."""
    url: str | None = None
    """The service's base URL. Required for SearXNG, which is self-hosted."""
    api_key: SecretStr | None = None
    api_key_env: str | None = None
    """Environment variable with the API key."""
    params: dict[str, object] = {}
    """Additional parameters for each search, in the service's own names: `{ engines = "wikipedia" }`."""
    timeout: float = Field(15, gt=0)
    """Time limit per search, and per page fetch, in seconds."""
    open_pages: bool = False
    """Whether the model may open web pages, and search in them."""
    allow_private: bool = False
    """Whether pages may be at private addresses and `http://` URLs, for an operator's own network."""

    @field_validator("open_pages")
    @classmethod
    def _can_read_pages(cls, open_pages: bool) -> bool:
        if open_pages:
            require_packages(["trafilatura"], "web")
        return open_pages

    def key(self, environment: Mapping[str, str]) -> str | None:
        if self.api_key is not None:
            return self.api_key.get_secret_value()
        if self.api_key_env is None:
            return None
        if not (key := environment.get(self.api_key_env)):
            raise ValueError(f"api_key_env: the variable {self.api_key_env} is not set")
        return key
