"""Presets: entries for well-known systems, in files that come with the package, which an entry names and overrides.

An entry keeps only its own fields (`raw_entry`): those of its preset are added whenever the entry is validated.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Final, Literal, get_args

from pydantic import GetJsonSchemaHandler, ModelWrapValidatorHandler, PrivateAttr, ValidationError, model_validator
from pydantic_core import CoreSchema, InitErrorDetails

from relay.config.entry_types import Entry
from relay.config.problems import unknown
from relay.config.strict_yaml import parse_mapping
from relay.domain.errors import UserError

PresetKind = Literal["receiver", "source"]
PRESET_KINDS: Final[tuple[PresetKind, ...]] = get_args(PresetKind)
_FILE: Final = re.compile(r"(?P<name>[a-z0-9-]+)@(?P<version>[0-9]+)\.yaml")
_BODIES: Final = frozenset({"json", "form", "text"})
_INSTEAD: Final = (_BODIES, frozenset({"status_steps", "status_endpoint", "status"}))
"""Fields that take each other's place: an entry with one of them gets none of them from its preset."""

Shape = Mapping[str, "Shape | None"]
"""The keys that were written in a mapping; None for a value that is wholly its own."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A version of a preset. `about`: a sentence. `text`: its file, which may have a preset of each kind."""

    name: str
    version: int
    kind: PresetKind
    about: str
    entry: Mapping[str, Any] = field(repr=False)
    text: str = field(repr=False)

    @property
    def id(self) -> str:
        """Name and version, such as `circleci@1`."""
        return f"{self.name}@{self.version}"


@cache
def all_presets() -> tuple[Preset, ...]:
    """All presets by name, the newest version of each first."""
    found = (_FILE.fullmatch(file.name) for file in files("relay").joinpath("presets").iterdir())
    read = [each for match in found if match for each in _read(match["name"], int(match["version"]))]
    return tuple(sorted(read, key=lambda preset: (preset.name, -preset.version, preset.kind)))


def find_preset(name: str, kind: PresetKind | None = None) -> Preset:
    """The preset with this name, such as `circleci@1`, or the newest version of a bare name. Without `kind`, that for
    receivers if there are both. Raises UserError."""
    known = [preset for preset in all_presets() if kind in (None, preset.kind)]
    bare, _, version = name.partition("@")
    versions = [preset for preset in known if preset.name == bare]
    if not versions:
        raise UserError(unknown(f"preset {name!r}", name, sorted({preset.name for preset in known})))
    if "@" not in name:
        return versions[0]
    found = next((preset for preset in versions if str(preset.version) == version), None)
    if found is None:
        raise UserError(f"unknown version of a preset: {name!r}; known: {', '.join(preset.id for preset in versions)}")
    return found


def with_preset(raw: Mapping[str, object], kind: PresetKind) -> Mapping[str, object]:
    """An entry that need not be valid, with the fields of its preset."""
    try:
        return merged(find_preset(str(raw["preset"]), kind).entry, raw) if "preset" in raw else raw
    except UserError:
        return raw


def merged(preset: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own`, with what it leaves out from `preset`. Mappings are merged key by key, except a request's body; any other
    value of `own` takes the place of the preset's."""
    replaced = {key for fields in _INSTEAD if fields & own.keys() for key in fields}
    taken = {key: value for key, value in preset.items() if key not in replaced}
    return taken | {key: _merged_value(key, taken.get(key), value) for key, value in own.items()}


def _merged_value(key: str, preset: Any, own: Any) -> Any:
    if not _is_merged(key, preset, own):
        return own
    if key == "headers":  # their case does not matter
        names = {str(name).lower() for name in own}
        preset = {name: value for name, value in preset.items() if name.lower() not in names}
    return merged(preset, own)


def _is_merged(key: str, preset: object, own: object) -> bool:
    return key not in _BODIES and isinstance(preset, Mapping) and isinstance(own, Mapping)


def _shape(preset: Mapping[str, Any], own: Mapping[str, Any]) -> Shape:
    return {
        str(key): _shape(preset[key], value) if _is_merged(key, preset.get(key), value) else None
        for key, value in own.items()
    }


def _only(value: Any, shape: Shape | None) -> Any:
    if shape is None or not isinstance(value, Mapping):
        return value
    return {key: _only(inner, shape[key]) for key, inner in value.items() if key in shape}


def _read(name: str, version: int) -> list[Preset]:
    """One for each kind of entry that the file has."""
    text = files("relay").joinpath("presets", f"{name}@{version}.yaml").read_text(encoding="utf-8")
    found: Any = parse_mapping(text, f"{name}@{version}.yaml")
    return [Preset(name, version, kind, found["about"], found[kind], text) for kind in PRESET_KINDS if kind in found]


class FromPreset(Entry):
    """An entry that may name a preset."""

    PRESETS: ClassVar[PresetKind]

    preset: str | None = None
    """Preset whose fields apply where the entry has none of its own, such as `circleci`, or `circleci@1` for a certain
    version; see `relay presets list`."""
    _written: Shape | None = PrivateAttr(None)
    _from_preset: frozenset[str] = PrivateAttr(frozenset())

    @model_validator(mode="wrap")
    @classmethod
    def _expand(cls, value: Any, handler: ModelWrapValidatorHandler["FromPreset"]) -> "FromPreset":
        name = value.get("preset") if isinstance(value, Mapping) else None
        if not isinstance(name, str):
            return handler(value)
        try:
            preset = find_preset(name, cls.PRESETS)
        except UserError as error:
            wrong = InitErrorDetails(
                type="value_error", loc=("preset",), input=name, ctx={"error": ValueError(str(error))}
            )
            raise ValidationError.from_exception_data(cls.__name__, [wrong]) from None
        whole = merged(preset.entry, value)
        made = handler(whole)
        made._written = _shape(preset.entry, value)
        made._from_preset = frozenset(whole.keys() - value.keys())
        made.__pydantic_fields_set__ &= set(made._written)
        return made

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        fields: Any = handler.resolve_ref_schema(schema)["properties"]
        known = [preset for preset in all_presets() if preset.kind == cls.PRESETS]
        fields["preset"]["anyOf"][0]["enum"] = sorted({name for each in known for name in (each.name, each.id)})
        return schema

    @property
    def from_preset(self) -> list[str]:
        """The fields that only the preset has, sorted."""
        return sorted(self._from_preset)

    def only_own(self, dumped: dict[str, Any]) -> dict[str, Any]:
        """The fields of an entry without those of its preset. `dumped`: all its fields."""
        found: dict[str, Any] = _only(dumped, self._written)
        return found
