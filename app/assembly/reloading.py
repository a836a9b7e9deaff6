"""Applies changed settings to the running application."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from app.api.dependencies import APIDependencies
from app.assembly.parts import generation_options
from app.backends.routing.router import Router
from app.observability import logging as logs
from app.settings import Settings, SettingsError
from app.settings.reloading import ReloadReport, compare_settings

logger = logging.getLogger(__name__)


@dataclass
class SettingsReload:
    """Reads the settings again, applies changes, and logs changes that need a restart."""

    settings: Settings  # in effect
    read: Callable[[], Settings]
    router: Router
    api: APIDependencies

    def __call__(self) -> ReloadReport:
        """Apply changed settings. If they are invalid, log and report the reason, and change nothing."""
        pid, begun = os.getpid(), time.monotonic_ns()
        try:
            change = compare_settings(self.settings, self.read())
            options = generation_options(change.settings)
            self.router.reconfigure(change.settings.served())
        except (SettingsError, ValueError, ImportError, AttributeError) as error:
            logger.error("settings not reloaded", extra={"reason": str(error)})
            return ReloadReport(pid, begun, problems=str(error).splitlines())
        except Exception:
            logger.exception("settings not reloaded")
            return ReloadReport(pid, begun, problems=["The settings could not be read; the log contains the error."])
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
            logs.configure(new)  # always, to redact new secrets, too
        if change.restart:
            logger.warning("changed settings require a restart", extra={"settings": ", ".join(change.restart)})
        logger.info(
            "settings reloaded", extra={"changed": ", ".join(change.applied), "backends": ", ".join(new.served())}
        )
        return ReloadReport(pid, begun, change.applied, change.restart, [*new.served()])
