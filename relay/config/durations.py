"""Durations as settings have them; see `relay/domain/durations.py`. Values are seconds."""

from typing import Annotated, Final

from pydantic import BeforeValidator, Field, WithJsonSchema

from relay.domain.durations import WRITTEN, parse_duration

_SCHEMA: Final[dict[str, object]] = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^(?:{WRITTEN.pattern})$"}],
    "description": "Seconds as a number, or with a unit: 500ms, 15s, 10m, 1h, 2d.",
}

Duration = Annotated[float, BeforeValidator(parse_duration), WithJsonSchema(_SCHEMA)]
"""Seconds, 0 or more."""

PositiveDuration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0), WithJsonSchema(_SCHEMA)]
"""Seconds, more than 0."""
