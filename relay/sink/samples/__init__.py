"""Sample events for trying out a relay: real payloads, shipped with the package (origin: see the NOTICE beside
them)."""

from dataclasses import dataclass, field
from importlib.resources import files

from relay.domain.errors import UserError


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample event. `name` is `github.<event>[.<action>]`, `event_type` the part after the first dot.

    `payload`: the bytes of a JSON object.
    """

    name: str
    event_type: str
    payload: bytes = field(repr=False)


def names() -> list[str]:
    """The names of all samples, sorted."""
    found = (entry.name for entry in files(__name__).joinpath("github").iterdir())
    return sorted(f"github.{name.removesuffix('.json')}" for name in found if name.endswith(".json"))


def load(name: str) -> Sample:
    """The sample with this name. Raises UserError, which lists all names."""
    if name not in names():
        raise UserError(f"no sample event is called {name!r}; known: {', '.join(names())}")
    sender, _, event_type = name.partition(".")
    payload = files(__name__).joinpath(sender, f"{event_type}.json").read_bytes()
    return Sample(name, event_type, payload)
