"""The OpenAPI document as a page for people, with each example as a call of curl and of Python.

Pure, from the document alone; a test makes each of these calls."""

import json
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from relay.api.html import prose, table

Node = Mapping[str, Any]
BASE: Final = "http://127.0.0.1:8080"
"""The URL of a relay with default settings."""
_KEY: Final = "$RELAY_API_KEY"
_WIDTH: Final = 100


class ExampleCall(NamedTuple):
    """`url`: without the query. `has_key`: it proves who it is. `body`: a JSON value, or text as it is sent."""

    method: str
    url: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    has_key: bool
    body: Any
    media_type: str | None


def call_of(method: str, path: str, found: Node) -> ExampleCall:
    """`found`: the operation in the document."""
    target, query, headers = path, [], {}
    for one in (one for one in found["parameters"] if "example" in one):
        value = one["example"]
        match one["in"]:
            case "path":
                target = target.replace(f"{{{one['name']}}}", quote(str(value), safe="{}"))
            case "query":
                query += [(one["name"], str(each)) for each in (value if isinstance(value, list) else [value])]
            case _:
                headers[one["name"]] = str(value)
    body, media_type = _example_body(found)
    return ExampleCall(method.upper(), BASE + target, query, headers, bool(found["security"]), body, media_type)


def curl(call: ExampleCall) -> str:
    """A line for a shell."""
    words = ["curl", "-i", *(() if call.method == "GET" else ("-X", call.method))]
    words.append(shlex.quote(call.url + ("?" + urlencode(call.query) if call.query else "")))
    lines = [" ".join(words)]
    if call.has_key:
        lines.append(f'-H "authorization: Bearer {_KEY}"')
    lines += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in call.headers.items()]
    if call.media_type is not None:
        lines.append(f"-H {shlex.quote(f'content-type: {call.media_type}')}")
        data = call.body if isinstance(call.body, str) else json.dumps(call.body)
        lines.append(f"--data-binary {shlex.quote(data)}")
    return " \\\n  ".join(lines)


def python(call: ExampleCall) -> str:
    """The call as a Python program, which needs the package `requests`."""
    method = call.method.lower()
    arguments = [_text(call.url)]
    if call.query:
        arguments.append(f"params=[{', '.join(f'({_text(name)}, {_text(value)})' for name, value in call.query)}]")
    headers = [f"{_text(name)}: {_text(value)}" for name, value in call.headers.items()]
    if call.has_key:
        headers.insert(0, '"Authorization": f"Bearer {os.environ[\'RELAY_API_KEY\']}"')
    as_json = call.media_type == "application/json" and not isinstance(call.body, str)
    if call.media_type is not None and not as_json:
        headers.append(f'"Content-Type": {_text(call.media_type)}')
    if headers:
        arguments.append(f"headers={{{', '.join(headers)}}}")
    if as_json:
        arguments.append(f"json={_literal(call.body)}")
    elif call.media_type is not None:
        arguments.append(f"data={_text(call.body)}")
    arguments.append("timeout=60")
    whole = f"response = requests.{method}({', '.join(arguments)})"
    if len(whole) > _WIDTH:
        whole = "\n".join([f"response = requests.{method}(", *(f"    {each}," for each in arguments), ")"])
    imports = "import os\n\nimport requests" if call.has_key else "import requests"
    return f"{imports}\n\n{whole}\nprint(response.status_code, response.text)"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _literal(value: Any) -> str:
    """A JSON value as Python writes it."""
    match value:
        case dict():
            return f"{{{', '.join(f'{_text(name)}: {_literal(each)}' for name, each in value.items())}}}"
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case str():
            return _text(value)
    return repr(value)


def _example_body(found: Node) -> tuple[Any, str | None]:
    for media_type, of in found.get("requestBody", {}).get("content", {}).items():
        if "examples" in of:
            return of["examples"]["tried"]["value"], media_type
    return None, None


_METHODS: Final = ("get", "post", "put", "patch", "delete", "options")


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
    call = call_of(method, path, found)
    calls = f"<h4>With curl</h4><pre>{escape(curl(call))}</pre><h4>With Python</h4><pre>{escape(python(call))}</pre>"
    return f'<details id="{escape(found["operationId"])}"><summary>{head}</summary>{_parts(found)}{calls}</details>'


def _sent(name: str, found: Node) -> str:
    head = f'<b class="m">POST</b><code>{escape(name)}</code> {prose(found["summary"])}'
    return f'<details id="sent-{escape(name)}"><summary>{head}</summary>{_parts(found)}</details>'


def _parts(found: Node) -> str:
    description = f"<p>{prose(found['description'])}</p>" if "description" in found else ""
    body = _body(found["requestBody"]["content"]) if "requestBody" in found else ""
    return description + _parameters(found["parameters"]) + body + _responses(found["responses"])


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


def _body(content: Node) -> str:
    rows = [(f"<code>{escape(media)}</code>", _media(of)) for media, of in content.items()]
    return f"<h4>Body</h4>{table(('type', 'what'), rows)}"


def _media(of: Node) -> str:
    if "x-item-schema" in of:
        return f"each {shape(of['x-item-schema'])}"
    return shape(of["schema"]) if of.get("schema") else "any bytes"


def _responses(responses: Node) -> str:
    rows = []
    for status, one in responses.items():
        content = one.get("content", {})
        what = ", ".join(f"<code>{escape(media)}</code> {_media(of)}" for media, of in content.items())
        named: Node = one.get("headers", {})
        headers = "".join(f"<br><code>{escape(name)}</code>: {prose(of['description'])}" for name, of in named.items())
        rows.append((escape(status), prose(one["description"]) + headers, what))
    return f"<h4>Answers</h4>{table(('status', 'when', 'what'), rows)}"


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
