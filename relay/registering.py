"""How receivers and sources are made over the API of a process: with which secrets, and what they have to prove."""

import secrets
from collections.abc import Mapping

from relay.api.registrar import Registrar
from relay.clock import Clock
from relay.config.drafts import Rules
from relay.config.encryption import KeyRing
from relay.config.references import usable_variables
from relay.config.registry import Registry
from relay.config.settings import Settings
from relay.domain.signing import generate_secret
from relay.domain.topics import Topics
from relay.log.port import Log
from relay.state.port import State


def registrar_of(
    settings: Settings,
    log: Log,
    state: State,
    registry: Registry,
    clock: Clock,
    variables: Mapping[str, str],
    ring: KeyRing,
    *,
    owner: str,
) -> Registrar:
    """`variables`: all that entries may refer to. `owner`: unique per process."""
    allowed = settings.api_secrets_from
    usable = usable_variables(variables, allowed) if allowed else ()
    rules, topics = Rules(variables, usable, ring, settings.api_verification), Topics(settings.topic_prefix)
    return Registrar(
        log, state, topics, registry, clock, rules, lambda: generate_secret(secrets.token_bytes), owner=owner
    )
