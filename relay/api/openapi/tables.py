"""All that is said of routes. A module `of_<noun>` has a table for each noun; whoever adds a route adds it there."""

from typing import Final

from relay.api.openapi import (
    of_audit,
    of_doctor,
    of_exchange,
    of_failed,
    of_history,
    of_keys,
    of_messages,
    of_monitoring,
    of_overview,
    of_receivers,
    of_secrets,
    of_sessions,
    of_sources,
    of_tail,
)
from relay.api.openapi.operation import Operation

_TABLES: Final[tuple[tuple[Operation, ...], ...]] = (
    of_messages.OPERATIONS,
    of_exchange.OPERATIONS,
    of_history.OPERATIONS,
    of_failed.OPERATIONS,
    of_receivers.OPERATIONS,
    of_sources.OPERATIONS,
    of_secrets.OPERATIONS,
    of_keys.OPERATIONS,
    of_tail.OPERATIONS,
    of_sessions.OPERATIONS,
    of_overview.OPERATIONS,
    of_audit.OPERATIONS,
    of_doctor.OPERATIONS,
    of_monitoring.OPERATIONS,
)
OPERATIONS: Final = {
    (operation.method, operation.path): operation for operations in _TABLES for operation in operations
}
"""By method and template, as the router has it."""
