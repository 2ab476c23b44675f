"""JSON Schemas of what the API reads and writes: msgspec Structs, dataclasses, TypedDicts, pydantic models."""

import re
from collections.abc import Iterable
from typing import Any, Final

from msgspec.json import schema_components
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REF: Final = "#/components/schemas/"
_CODE: Final = re.compile(r"\s*\n\s*")

Schema = dict[str, Any]


class Schemas:
    """The schemas of all `types`; what has a name is among `components`, and referred to."""

    def __init__(self, types: Iterable[Any]) -> None:
        wanted = list({repr(kind): kind for each in types for kind in _alternatives(each)}.values())
        models = [kind for kind in wanted if _is_model(kind)]
        others = [kind for kind in wanted if not _is_model(kind)]
        found, components = schema_components(others, schema_hook=_hook, ref_template=_REF + "{name}")
        self._of: dict[str, Schema] = dict(zip(map(repr, others), found, strict=True))
        self.components: dict[str, Schema] = {name: _tidy(schema) for name, schema in components.items()}
        if models:
            named, definitions = models_json_schema(
                [(model, "validation") for model in models], ref_template=_REF + "{model}"
            )
            self._of |= {repr(model): named[model, "validation"] for model in models}
            self.components |= {name: _tidy(schema) for name, schema in definitions.get("$defs", {}).items()}

    def of(self, kind: Any) -> Schema:
        """The schema of a type, or of any one of a tuple of types."""
        found = [self._of[repr(each)] for each in _alternatives(kind)]
        return found[0] if len(found) == 1 else {"anyOf": found}


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return kind if isinstance(kind, tuple) else (kind,)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _hook(kind: type) -> Schema:
    if kind is object:
        return {"description": "Any JSON."}
    raise NotImplementedError(kind)


def _tidy(schema: Schema) -> Schema:
    """Docstrings are descriptions; those that only repeat the signature say nothing."""
    text = schema.get("description")
    if text is None:
        return schema
    if text.startswith(f"{schema.get('title')}("):
        return {name: value for name, value in schema.items() if name != "description"}
    return schema | {"description": _CODE.sub(" ", text).strip()}
