"""What all that may be written in receivers.yaml is made of: how strict a mapping is, and texts, names and lists."""

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field

from relay.config.references import check_references
from relay.domain.identity import is_receiver_name
from relay.domain.topics import SHARED


class Entry(BaseModel):
    """A mapping with fixed fields."""

    # strict: `rate_limit: "100"` or `enabled: 1` is a slip of the pen, and says so
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


def _text(value: str) -> str:
    check_references(value)
    return value


def _receiver_name(name: str) -> str:
    if name == SHARED:
        raise ValueError(f"{SHARED!r} is the name of the shared lane; no receiver can have it")
    if not is_receiver_name(name):
        raise ValueError("a receiver's name has 1 to 63 of a-z, 0-9 and -, and does not begin with -")
    return name


Text = Annotated[str, AfterValidator(_text)]
SomeText = Annotated[str, Field(min_length=1), AfterValidator(_text)]
ReceiverName = Annotated[str, AfterValidator(_receiver_name)]
TEXT_OR_LIST: Final = Discriminator(lambda value: "(list)" if isinstance(value, list | tuple) else "(text)")
"""Of a union of the two, so that mistakes are told of the one that was written."""
