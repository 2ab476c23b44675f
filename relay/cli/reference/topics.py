"""The records on the topics, as /asyncapi.json describes them."""

from typing import Any

from relay.api.asyncapi import asyncapi
from relay.cli.reference.markdown import code, codes, described, paragraphs, table
from relay.domain.topics import Topics


def page() -> str:
    document: Any = asyncapi(Topics())
    channels = document["channels"].values()
    messages = document["components"]["messages"]
    return paragraphs(
        described(document["info"]["description"]),
        "## Topics",
        table(("topic", "what is there", "forms of records", "for others"), [_channel(each) for each in channels]),
        "## Forms of records",
        *(_message(each, document) for each in messages.values()),
    )


def _channel(channel: Any) -> tuple[str, str, str, str]:
    forms = codes(channel["messages"])
    return code(channel["address"]), channel["summary"], forms, "" if channel.get("x-relay-internal") else "yes"


def _message(message: Any, document: Any) -> str:
    head = f"### {message['title']}\n\n{described(message['summary'])}"
    headers = message.get("headers")
    if headers is None:
        return head
    found = _resolved(headers, document)
    required = found.get("required", [])
    rows = [
        (code(name), "yes" if name in required else "", each.get("description", ""))
        for name, each in found.get("properties", {}).items()
    ]
    return f"{head}\n\n{table(('header', 'required', 'what it is'), rows)}"


def _resolved(schema: Any, document: Any) -> Any:
    while "$ref" in schema:
        found = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema
