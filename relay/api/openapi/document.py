"""The document: what the tables say, for the routes that a router has, as OpenAPI 3.1. Its JSON Schemas are made of
msgspec Structs, dataclasses, TypedDicts and pydantic models."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.json import schema_components
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from relay import __version__
from relay.api.access import MONITOR, OPEN, Need
from relay.api.landing import MONITORING
from relay.api.openapi.sent import SENT, Sent
from relay.api.origin_check import is_of_api
from relay.api.parameter import Parameter
from relay.api.problem_details import MEDIA_TYPE, ProblemView, view_of
from relay.api.problems import (
    FORBIDDEN,
    FOREIGN_ORIGIN,
    HEADERS_TOO_LARGE,
    INTERNAL,
    INVALID,
    NOT_FOUND,
    TOO_LARGE,
    TOO_MANY,
    TOO_SLOW,
    UNAUTHORIZED,
    UNAVAILABLE,
    UNKNOWN_HOST,
    UNSUPPORTED,
    ProblemKind,
)
from relay.api.route import READING, Body, Example, Route
from relay.api.waiters import FAILURES
from relay.domain.message import is_json

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


VERSION: Final = "3.1.1"
_UNNAMED: Final = re.compile(r"[^a-zA-Z0-9]+")
_ABOUT: Final = """\
A sender sends messages; the relay delivers each to its receivers, gets the receiver's answer, and returns it.

Errors are problem details (RFC 9457): `type` is a path of this API with a page about the error. An unknown path is a
404, another method of a known path a 405 with `Allow`; HEAD is allowed where GET is. Unknown query parameters and
members of a body are refused."""
_OF_STATUS: Final[Mapping[int, tuple[str, str]]] = {
    401: ("WWW-Authenticate", "What would prove who calls."),
    **dict.fromkeys((429, 503), ("Retry-After", "Seconds after which to repeat the request.")),
}
"""The header that all problems with a status have, and its description."""


def document(routes: Collection[Route]) -> dict[str, Any]:
    """The document of these routes, and of the requests that the relay sends."""
    schemas = Schemas([*_types(routes), *(one.body for one in SENT if one.body is not None), ProblemView])
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for operation in routes:
        paths[operation.path][operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": VERSION,
        "info": {
            "title": "Webhook relay",
            "version": __version__,
            "summary": "A webhook relay that brings the receiver's answer back to the sender",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The one that this document comes from."}],
        "tags": [{"name": noun} for noun in dict.fromkeys(operation.noun for operation in routes)],
        "paths": paths,
        "webhooks": {one.name: {"post": _webhook(one, schemas)} for one in SENT},
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key with one of the scopes named; none while there are no keys.",
                }
            },
        },
        "x-delivery-failures": [f"/problems/{kind.name}" for kind in FAILURES],
    }


def problems_of(operation: Route) -> list[ProblemKind]:
    """All that it may be answered with, by status."""
    found = [*operation.problems, HEADERS_TOO_LARGE, INTERNAL, UNAVAILABLE]
    if operation.path not in MONITORING:
        found.append(UNKNOWN_HOST)
    if operation.scope is not OPEN:
        found += [UNAUTHORIZED, FORBIDDEN, TOO_MANY]
    if operation.method not in READING or is_of_api(operation.path):
        found.append(FOREIGN_ORIGIN)
    if operation.body is not None:
        found += [INVALID, TOO_SLOW, TOO_LARGE, UNSUPPORTED]
    if operation.parameters:
        found.append(INVALID)
    if "{" in operation.path:
        found.append(NOT_FOUND)
    return sorted(set(found), key=lambda kind: (kind.status, kind.name))


def _security(need: Need) -> list[dict[str, list[str]]]:
    """The scopes of which a key has to have one. Metrics are closed only once there are keys."""
    if need is OPEN:
        return []
    scopes: list[dict[str, list[str]]] = [{"key": [scope]} for scope in (*need.scopes, "admin")]
    return [{}, *scopes] if need is MONITOR else scopes


def _types(operations: Iterable[Route]) -> Iterator[Any]:
    for operation in operations:
        yield from (parameter.of for parameter in operation.parameters)
        bodies = [operation.body, *(answer.body for answer in operation.answers)]
        for body in bodies:
            if body is not None:
                yield from (kind for kind in (*body.content.values(), *body.items.values()) if kind is not None)


def _operation(operation: Route, schemas: Schemas) -> dict[str, Any]:
    example, description = operation.example, operation.description
    found: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.noun],
        "summary": operation.summary,
        **({"description": description} if description else {}),
        "parameters": [_parameter(parameter, schemas, example) for parameter in operation.parameters],
        "responses": dict(sorted({**_answers(operation, schemas), **_problems(operation)}.items())),
        "security": _security(operation.scope),
    }
    if operation.verb is not None:
        found["x-audit"] = operation.verb
    if operation.body is not None:
        content = _content(operation.body, schemas)
        if example.body is not None:
            content[example.content_type]["examples"] = {"tried": {"value": example.body}}
        found["requestBody"] = {"required": operation.body.required, "content": content}
    return found


def _parameter(parameter: Parameter, schemas: Schemas, example: Example) -> dict[str, Any]:
    of = {"path": example.path, "query": example.query, "header": example.headers}[parameter.place]
    schema = schemas.of(parameter.of)
    found: dict[str, Any] = {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.description,
        "schema": schema,
    }
    if parameter.name in of:
        text = of[parameter.name]
        value: Any = int(text) if schema.get("type") == "integer" else text
        found["example"] = [value] if schema.get("type") == "array" else value
    return found


def _content(body: Body, schemas: Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for media_type, kind in body.content.items():
        found[media_type] = {} if kind is None else {"schema": schemas.of(kind)}
        if media_type in body.items:
            found[media_type]["x-item-schema"] = schemas.of(body.items[media_type])
        elif kind is None and is_json(media_type):
            found[media_type]["schema"] = {}
    return found


def _answers(operation: Route, schemas: Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for answer in operation.answers:
        one: dict[str, Any] = {"description": answer.description}
        if answer.body is not None:
            one["content"] = _content(answer.body, schemas)
        if answer.headers:
            one["headers"] = {name: _header(text) for name, text in answer.headers.items()}
        found[str(answer.status)] = one
    return found


def _problems(operation: Route) -> dict[str, Any]:
    by_status: dict[int, list[ProblemKind]] = defaultdict(list)
    for kind in problems_of(operation):
        by_status[kind.status].append(kind)
    taken = {answer.status for answer in operation.answers}
    return {str(status): _problem(status, kinds) for status, kinds in by_status.items() if status not in taken}


def _problem(status: int, kinds: Sequence[ProblemKind]) -> dict[str, Any]:
    types = [f"/problems/{kind.name}" for kind in kinds]
    name, text = _OF_STATUS.get(status, ("", ""))
    schema = {
        "allOf": [{"$ref": "#/components/schemas/ProblemView"}],
        "properties": {"type": {"enum": types}, "status": {"const": status}},
    }
    examples = {_UNNAMED.sub("_", kind.name): {"value": view_of(kind, kind.title, "/")} for kind in kinds}
    return {
        "description": "; ".join(f"{kind.title} (`{kind.name}`)" for kind in kinds),
        "content": {MEDIA_TYPE: {"schema": schema, "examples": examples}},
        **({"headers": {name: _header(text)}} if text else {}),
    }


def _header(text: str) -> dict[str, Any]:
    return {"description": text, "schema": {"type": "string"}}


def _webhook(one: Sent, schemas: Schemas) -> dict[str, Any]:
    return {
        "operationId": one.name,
        "summary": one.summary,
        "description": one.description,
        "parameters": [
            {
                "name": header.name,
                "in": "header",
                "required": header.always,
                "description": header.description,
                "schema": {"type": "string"},
            }
            for header in one.headers
        ],
        "requestBody": {
            "content": {
                media_type: {} if one.body is None else {"schema": schemas.of(one.body)} for media_type in one.media
            }
        },
        "responses": {status: {"description": text} for status, text in one.answers.items()},
        "security": [],
    }


def encoded(found: Mapping[str, Any]) -> bytes:
    """The document as it is served."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1)
