"""Every setting: its variable, default and meaning, as relay/config/settings.py has them."""

import ast
import inspect
from itertools import pairwise
from typing import Final, get_args

from relay.cli.reference.markdown import code, codes, table, titled
from relay.config.setting_layers import ALSO_FROM, SECRET_SETTINGS, env_name, shown_value
from relay.config.settings import Settings

ABOUT: Final = """\
Each setting is an environment variable, a line of the YAML file that `--config` or `RELAY_CONFIG_FILE` names (there
it is called as in the last column), or the content of a file: `RELAY_API_KEY_FILE=/run/secrets/key` for
`RELAY_API_KEY`. Some are options of a command as well. An option comes before the environment, that before a file
with a secret, that before YAML, and that before the default. An unknown variable that begins with `RELAY_` is
refused.

Durations are a number of seconds, or have a unit: `500ms`, `15s`, `10m`, `1h`, `2d`. Sizes are bytes, or `64KiB`,
`1MiB`. Lists have commas. `relay config show` prints the value and the origin of each; `relay config
check` checks them."""


def page() -> str:
    meanings = meanings_of(Settings)
    rows = [
        (code(env_name(name)), code(default_of(name)) or "none", _meaning(name, meanings), code(name))
        for name in Settings.model_fields
    ]
    return titled("Settings", ABOUT, table(("variable", "default", "what it is", "in YAML"), rows))


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
