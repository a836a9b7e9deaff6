"""Applies changed settings to the running application."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from app.api.parts import ApiParts
from app.assembly.parts import generation_options
from app.backends.routing.router import Router
from app.observability import logging as logs
from app.settings import Settings, SettingsError
from app.settings.reloading import ReloadReport, compare_settings

logger = logging.getLogger(__name__)


@dataclass
class SettingsReload:
    """Reads the settings again, applies the changes that need no restart, and logs which ones do."""

    settings: Settings  # those in effect
    read: Callable[[], Settings]
    router: Router
    api: ApiParts

    def __call__(self) -> ReloadReport:
        """Apply changed settings; if they are invalid, log and report why, and change nothing."""
        pid, begun = os.getpid(), time.monotonic_ns()
        try:
            change = compare_settings(self.settings, self.read())
            options = generation_options(change.settings)
            self.router.reconfigure(change.settings.served())
        except (SettingsError, ValueError, ImportError, AttributeError) as error:
            logger.error("settings not reloaded, since they are invalid: %s", error)
            return ReloadReport(pid, begun, problems=str(error).splitlines())
        except Exception:
            logger.exception("settings not reloaded")
            return ReloadReport(pid, begun, problems=["They could not be read, by an error that is in the log."])
        new = self.settings = change.settings
        self.api.auth.replace_keys((key.get_secret_value() for key in new.api_keys), new.keys)
        self.api.accounting.replace_prices(new.price_list())
        self.api.limits.replace(
            requests=new.limit_requests_per_minute,
            tokens=new.limit_tokens_per_minute,
            streams=new.limit_streams,
            streams_per_key=new.limit_streams_per_key,
        )
        self.api.responses.options = options
        self.api.responses.quota.limit = new.max_stored_bytes
        if change.applied:
            logs.configure(new)  # always, since it redacts the new secrets, too
        if change.restart:
            logger.warning("settings that changed, but need a restart: %s", ", ".join(change.restart))
        logger.info(
            "settings reloaded: changed %s; the backends are %s",
            ", ".join(change.applied) or "nothing",
            ", ".join(new.served()),
        )
        return ReloadReport(pid, begun, change.applied, change.restart, [*new.served()])
