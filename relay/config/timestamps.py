"""Timestamps as settings have them; see `relay/domain/timestamps.py`. Values are Unix seconds."""

from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from relay.domain.timestamps import parse_moment

Moment = Annotated[
    float,
    BeforeValidator(parse_moment),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "format": "date-time"}],
            "description": "Unix seconds, or RFC 3339: 2026-11-23T12:00:00Z.",
        }
    ),
]
