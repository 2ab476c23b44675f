"""Every setting: its variable, default and meaning, as relay/config/settings.py has them."""

import ast
import inspect
from itertools import pairwise
from typing import get_args

from relay.cli.reference.markdown import code, codes, table
from relay.config.setting_layers import ALSO_FROM, SECRET_SETTINGS, env_name, shown_value
from relay.config.settings import Settings


def page() -> str:
    meanings = meanings_of(Settings)
    rows = [
        (code(env_name(name)), code(default_of(name)) or "none", _meaning(name, meanings), code(name))
        for name in Settings.model_fields
    ]
    return table(("variable", "default", "what it is", "in YAML"), rows)


def _meaning(name: str, meanings: dict[str, str]) -> str:
    choices = _texts_in(Settings.model_fields[name].annotation)
    parts = [meanings.get(name, "")]
    if choices:
        parts.append(f"One of {codes(choices)}.")
    if name in SECRET_SETTINGS:
        parts.append("Secret: never shown.")
    others = [variable for variable, field in ALSO_FROM.items() if field == name]
    if others:
        parts.append(f"Also {codes(others)}.")
    return " ".join(part for part in parts if part)


def _texts_in(annotation: object) -> list[str]:
    """The texts of all Literals within a type."""
    inner = get_args(annotation)
    return [text for each in inner for text in ([each] if isinstance(each, str) else _texts_in(each))]


def default_of(name: str) -> str:
    return shown_value(name, getattr(Settings(), name))


def meanings_of(model: type) -> dict[str, str]:
    """Field -> the text below it."""
    [body] = [node.body for node in ast.parse(inspect.getsource(model)).body if isinstance(node, ast.ClassDef)]
    found = {}
    for field, below in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = below.value.value
    return found
