"""Every field of receivers.yaml, as its JSON Schema has it."""

import re
from typing import Any, Final

from relay.cli.reference.markdown import code, codes, described, paragraphs, table
from relay.config.receivers_file import receivers_schema
from relay.domain.times import format_duration

ORDER: Final = ("ReceiverEntry", "SourceEntry", "CallbackEntry", "InboundEntry")
"""Parts that readers look for first; the others follow by name."""


def page() -> str:
    schema: Any = receivers_schema()
    parts = schema["$defs"]
    names = [*ORDER, *sorted(set(parts) - set(ORDER))]
    return paragraphs(*(_section(name, parts[name]) for name in names if "properties" in parts[name]))


def _section(name: str, part: Any) -> str:
    required = part.get("required", [])
    rows = [
        (code(field), "required" if field in required else _default(one), _form(one), str(one.get("description", "")))
        for field, one in part["properties"].items()
    ]
    fields = table(("field", "default", "form", "what it is"), rows)
    return paragraphs(f"## {title_of(name)}", described(part.get("description")), fields)


def title_of(name: str) -> str:
    """`Breaker` for BreakerEntry."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removesuffix("Entry")).capitalize()


def _default(one: Any) -> str:
    default = one.get("default")
    if default is None or isinstance(default, list | dict):  # a mapping has its own section
        return ""
    if isinstance(default, bool):
        return code(str(default).lower())
    return code(format_duration(default) if isinstance(default, float) and is_duration(one) else str(default))


def is_duration(one: Any) -> bool:
    return any(str(each.get("pattern", "")).endswith("(ms|s|m|h|d)?)$") for each in [one, *one.get("anyOf", [])])


def _form(one: Any) -> str:
    if "$ref" in one:
        title = title_of(one["$ref"].rsplit("/", 1)[-1])
        return f"[{title.lower()}](#{title.lower().replace(' ', '-')})"
    if is_duration(one):
        return "duration"
    if "enum" in one:
        return codes(str(each) for each in one["enum"])
    for word in ("anyOf", "oneOf"):
        if word in one:
            forms = [_form(each) for each in one[word] if each.get("type") != "null"]
            return " or ".join(dict.fromkeys(forms))
    if one.get("type") == "array":
        inner = _form(one.get("items", {}))
        return f"list of {inner}" if inner else "list"
    if one.get("type") == "object":
        return "mapping"
    return str(one.get("type", one.get("const", "")))
