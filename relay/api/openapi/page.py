"""The document as a page for people: pure, from the document alone."""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from relay.api.html import prose, table
from relay.api.openapi.calls import call_of, curl, python

_METHODS: Final = ("get", "post", "put", "patch", "delete", "options")

Node = Mapping[str, Any]


def document_html(found: Node) -> str:
    """All routes by noun, what the relay sends, and the schemas."""
    nouns = [tag["name"] for tag in found["tags"]]
    parts = [f"<h1>{escape(found['info']['title'])}</h1>", f"<p>{prose(found['info']['description'])}</p>"]
    parts.append(
        '<p>As a document for programs: <a href="/openapi.json">/openapi.json</a>; what is on the topics: '
        '<a href="/asyncapi.json">/asyncapi.json</a>.</p>'
    )
    for noun in nouns:
        parts.append(f"<h2>{escape(noun.capitalize())}</h2>")
        parts += [_operation(*each) for each in _operations(found["paths"]) if noun in each[2]["tags"]]
    parts.append("<h2>What the relay sends</h2>")
    parts += [_sent(name, item["post"]) for name, item in found["webhooks"].items()]
    parts.append("<h2>Schemas</h2>")
    parts += [_component(name, schema) for name, schema in sorted(found["components"]["schemas"].items())]
    return "\n".join(parts)


def _operations(paths: Node) -> Iterator[tuple[str, str, Node]]:
    for path, item in paths.items():
        yield from ((method, path, item[method]) for method in _METHODS if method in item)


def _operation(method: str, path: str, found: Node) -> str:
    head = f'<b class="m">{method.upper()}</b><code>{escape(path)}</code> {prose(found["summary"])}'
    parts = [f"<p>{prose(found['description'])}</p>"] if "description" in found else []
    parts.append(_parameters(found["parameters"]))
    parts += _body("Body", found["requestBody"]["content"]) if "requestBody" in found else []
    parts.append(_responses(found["responses"]))
    call = call_of(method, path, found)
    parts.append(f"<h4>With curl</h4><pre>{escape(curl(call))}</pre>")
    parts.append(f"<h4>With Python</h4><pre>{escape(python(call))}</pre>")
    return f'<details id="{escape(found["operationId"])}"><summary>{head}</summary>{"".join(parts)}</details>'


def _sent(name: str, found: Node) -> str:
    head = f'<b class="m">POST</b><code>{escape(name)}</code> {prose(found["summary"])}'
    parts = [f"<p>{prose(found['description'])}</p>", _parameters(found["parameters"])]
    parts += _body("Body", found["requestBody"]["content"])
    parts.append(_responses(found["responses"]))
    return f'<details id="sent-{escape(name)}"><summary>{head}</summary>{"".join(parts)}</details>'


def _parameters(parameters: list[Node]) -> str:
    if not parameters:
        return ""
    rows = [
        (
            f"<code>{escape(one['name'])}</code>",
            escape(one["in"]) + (", required" if one["required"] else ""),
            shape(one["schema"]),
            prose(one["description"]),
        )
        for one in parameters
    ]
    return f"<h4>Parameters</h4>{table(('name', 'where', 'what', ''), rows)}"


def _body(title: str, content: Node) -> list[str]:
    rows = [(f"<code>{escape(media)}</code>", _media(of)) for media, of in content.items()]
    return [f"<h4>{title}</h4>{table(('type', 'what'), rows)}"]


def _media(of: Node) -> str:
    if "x-item-schema" in of:
        return f"each {shape(of['x-item-schema'])}"
    return shape(of["schema"]) if of.get("schema") else "any bytes"


def _responses(responses: Node) -> str:
    rows = []
    for status, one in responses.items():
        content = one.get("content", {})
        what = ", ".join(f"<code>{escape(media)}</code> {_media(of)}" for media, of in content.items())
        headers = "".join(f"<br><code>{escape(name)}</code>: {prose(of['description'])}" for name, of in _of(one))
        rows.append((escape(status), prose(one["description"]) + headers, what))
    return f"<h4>Answers</h4>{table(('status', 'when', 'what'), rows)}"


def _of(answer: Node) -> Iterator[tuple[str, Node]]:
    headers: Node = answer.get("headers", {})
    yield from headers.items()


def _component(name: str, schema: Node) -> str:
    description = f"<p>{prose(schema['description'])}</p>" if "description" in schema else ""
    rows = [
        (f"<code>{escape(field)}</code>", "required" if field in schema.get("required", ()) else "", shape(of))
        for field, of in schema.get("properties", {}).items()
    ]
    fields = table(("name", "", "what"), rows) if rows else shape(schema)
    return f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{description}{fields}</details>'


def shape(schema: Node) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    for word in ("anyOf", "allOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(shape(one) for one in schema[word]))
    if "enum" in schema or "const" in schema:
        return " | ".join(
            f"<code>{escape(json.dumps(one))}</code>" for one in schema.get("enum", [schema.get("const")])
        )
    return _of_type(schema)


def _of_type(schema: Node) -> str:
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {shape(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {shape(schema['additionalProperties'])}"
    words = {"minimum": "from", "maximum": "to", "minLength": "at least", "maxLength": "at most", "default": "usually"}
    bounds = [f"{text} {escape(json.dumps(schema[word]))}" for word, text in words.items() if word in schema]
    return " ".join([escape(kind) if isinstance(kind, str) else escape(" or ".join(kind)), *bounds])
