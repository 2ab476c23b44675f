"""The Lua scripts: read from `scripts/`, each with the parts that its first line includes."""

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_INCLUDE = "--include"


class Script(NamedTuple):
    """`sha`: the name under which the server keeps it once loaded."""

    source: str
    sha: str


def _read(name: str) -> str:
    return (files("relay.state") / "scripts" / f"{name}.lua").read_text(encoding="utf-8")


@cache
def script(name: str) -> Script:
    """The script `scripts/<name>.lua`, complete."""
    body = _read(name)
    first, _, _ = body.partition("\n")
    parts = first.removeprefix(_INCLUDE).split() if first.startswith(_INCLUDE) else []
    source = "\n".join([*map(_read, parts), body])
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
