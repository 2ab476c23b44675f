"""Layers that settings are loaded from: flags, environment, secret files, a YAML file. Each value's origin and text."""

from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, get_args

from pydantic import SecretStr, ValidationError

from relay.config.problems import explain, nearest, raise_all, unknown
from relay.config.settings import Settings
from relay.config.strict_yaml import read_mapping
from relay.domain.secrecy import MASK, masked_url
from relay.domain.times import format_duration


def _has_secret(kind: object) -> bool:
    return kind is SecretStr or any(map(_has_secret, get_args(kind)))


SECRET_SETTINGS: Final = frozenset(name for name, one in Settings.model_fields.items() if _has_secret(one.annotation))
"""Settings whose values must not appear in any message."""
_SHARES: Final = frozenset({"attempt_log"})
"""Numbers that are not durations."""
SET_BY_COMMAND: Final = "the command itself"
"""The origin of values that a command sets on its own, such as `relay dev`."""
ALSO_FROM: Final = {
    "no_proxy": "no_proxy",
    "NO_PROXY": "no_proxy",
    "SENTRY_DSN": "sentry_dsn",
    "SENTRY_ENVIRONMENT": "sentry_environment",
}
"""Variables without our prefix that are read, too."""


def shown_value(name: str, value: object) -> str:
    """A setting's value as it is written; MASK for a secret."""
    if value is None:
        return ""
    if name in ("redis_url", "history_url") and isinstance(value, SecretStr):
        return _without_password(value.get_secret_value())
    if isinstance(value, SecretStr):
        return MASK
    if name in SECRET_SETTINGS and isinstance(value, tuple):
        return ",".join([MASK] * len(value))
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if name in _SHARES else format_duration(value)
    return str(value)


def _without_password(url: str) -> str:
    """A server's URL with its password masked. If the password has characters that make the URL invalid, every part
    that may belong to it is masked."""
    head, mark, query = url.partition("?")
    login, at, rest = head.rpartition("@")
    if at:
        scheme, _, user = login.partition("://")
        head = f"{scheme}://{user.partition(':')[0]}:{MASK}@{rest}"
    return head + mark + (MASK if "@" in query else masked_url(mark + query).removeprefix(mark))


ENV_PREFIX: Final = "RELAY_"
CONFIG_FILE: Final = "config_file"
"""Among the overrides: the YAML file to read settings from. In the environment: RELAY_CONFIG_FILE."""

_FLAGS: Final = {"api_port": "--port", "receivers_file": "--receivers"}
"""Options that have other names than their settings."""


class Given(NamedTuple):
    """A value from a layer. `where`, for display: `--port`, `RELAY_API_PORT`, `relay.yaml: api_port`."""

    value: object
    where: str


class Origin(NamedTuple):
    """A setting in effect. `value`: as text, secrets masked. `source`: where it came from, or `default`."""

    name: str
    value: str
    source: str


def load_settings(overrides: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """flags (`overrides`: field -> value, None if not given) > environment > `*_FILE` secrets > YAML file > defaults.

    Raises UserError with one line per mistake: the place, the mistake, and allowed values.
    """
    given = _given(overrides, environ)
    settings = _validated(given)
    settings.remember({name: one.where for name, one in given.items()})
    return settings


def origins_of(settings: Settings) -> list[Origin]:
    """Every setting in effect, and its origin if `load_settings` has read it."""
    given = settings.model_fields_set
    return [
        Origin(
            name, shown_value(name, value), (settings.origin_of(name) or SET_BY_COMMAND) if name in given else "default"
        )
        for name, value in settings
    ]


def _validated(given: Mapping[str, Given]) -> Settings:
    try:
        return Settings.model_validate({name: one.value for name, one in given.items()})
    except ValidationError as error:
        found = explain(error, Settings, hidden=SECRET_SETTINGS)
    raise_all(
        f"{given[name].where if (name := str(place[0])) in given else env_name(name)}: {text}" for place, text in found
    )
    raise AssertionError("a validation error without errors")


def _given(overrides: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, Given]:
    mistakes = list(_unknown_variables(environ))
    flags = {
        name: Given(value, _FLAGS.get(name, "--" + name.replace("_", "-")))
        for name, value in overrides.items()
        if value is not None and name != CONFIG_FILE
    }
    config_file = overrides.get(CONFIG_FILE) or environ.get(env_name(CONFIG_FILE))
    layers: ChainMap[str, Given] = ChainMap(
        flags,
        _from_environment(environ),
        _from_secret_files(environ, mistakes),
        _from_yaml(Path(str(config_file)), mistakes) if config_file else {},
    )
    raise_all(mistakes)
    return dict(layers)


def env_name(field: str) -> str:
    """`RELAY_API_PORT` for `api_port`."""
    return ENV_PREFIX + field.upper()


def _variables() -> dict[str, str]:
    """Variable -> field. The names with our prefix are last, so that they take precedence."""
    return {**ALSO_FROM, **{env_name(field): field for field in Settings.model_fields}}


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    known = [*_variables(), env_name(CONFIG_FILE)]
    allowed = {*known, *(f"{name}_FILE" for name in known)}
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX) and not name.startswith(f"{ENV_PREFIX}TEST_") and name not in allowed:
            # without the prefix, which makes any two similar
            meant = nearest(name.removeprefix(ENV_PREFIX), [each.removeprefix(ENV_PREFIX) for each in known])
            hint = f"did you mean '{ENV_PREFIX}{meant}'?" if meant else "`relay help settings` lists all"
            yield f"{name}: unknown environment variable; {hint}"


def _from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    # empty counts as not set, as `NAME: ${NAME:-}` in a compose file intends
    return {field: Given(environ[name], name) for name, field in _variables().items() if environ.get(name)}


def _from_secret_files(environ: Mapping[str, str], mistakes: list[str]) -> dict[str, Given]:
    found = {}
    for name, field in _variables().items():
        path = environ.get(f"{name}_FILE")
        if not path:
            continue
        try:
            found[field] = Given(Path(path).read_text(encoding="utf-8").rstrip("\r\n"), f"{name}_FILE")
        except (OSError, UnicodeDecodeError) as error:
            mistakes.append(f"{name}_FILE: {path} cannot be read: {getattr(error, 'strerror', 'it is not UTF-8 text')}")
    return found


def _from_yaml(path: Path, mistakes: list[str]) -> dict[str, Given]:
    found = {}
    for key, value in read_mapping(path).items():
        name = str(key)
        if name in Settings.model_fields:
            found[name] = Given(value, f"{path}: {name}")
        else:
            mistakes.append(f"{path}: {name}: {unknown('setting', name, list(Settings.model_fields))}")
    return found
