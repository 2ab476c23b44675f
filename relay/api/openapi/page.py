"""Pages of the documentation: they need nothing but themselves, no script, no font, no picture. Their templates are in
`templates/`. The largest is the OpenAPI document for people, with each example as a call of curl and of Python, which
a test makes."""

import hashlib
import json
import re
import shlex
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from aiohttp import web
from markupsafe import Markup, escape

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES: Final = Path(__file__).parents[1] / "templates"
_STYLE: Final = (_TEMPLATES / "page.css").read_text()
_DIGEST: Final = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_CODE: Final = re.compile(r"`([^`]*)`")


def html_response(text: str) -> web.Response:
    """`text`: what `render` returned."""
    return web.Response(text=text, content_type="text/html", charset="utf-8", headers=_HEADERS)


def render(template: str, **values: object) -> str:
    """The page of a template. Values are escaped."""
    return _environment().get_template(template).render(values, style=_STYLE)


def prose(text: str) -> Markup:
    """Plain text, with what stands between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader  # takes memory, and few processes need it

    found = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    found.filters["prose"] = prose
    return found


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


def document_html(found: Node) -> str:
    """All routes by noun, what the relay sends, and the schemas."""
    return render("docs.html", found=found, call_of=call_of, curl=curl, python=python, shape=shape)


def shape(schema: Node) -> Markup:
    """A schema in a few words."""
    if "$ref" in schema:
        return Markup('<a href="#{0}">{0}</a>').format(schema["$ref"].rpartition("/")[2])
    for word in ("anyOf", "allOf"):
        if word in schema:
            return Markup(" or ").join(dict.fromkeys(map(shape, schema[word])))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return Markup(" | ").join(Markup("<code>{}</code>").format(json.dumps(one)) for one in values)
    return _of_type(schema)


def _of_type(schema: Node) -> Markup:
    kind = schema.get("type", "anything")
    if kind == "array":
        return Markup("list of {}").format(shape(schema.get("items", {})))
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return Markup("object of {}").format(shape(schema["additionalProperties"]))
    words = {"minimum": "from", "maximum": "to", "minLength": "at least", "maxLength": "at most", "default": "usually"}
    bounds = [f"{text} {json.dumps(schema[word])}" for word, text in words.items() if word in schema]
    return escape(" ".join([kind if isinstance(kind, str) else " or ".join(kind), *bounds]))
