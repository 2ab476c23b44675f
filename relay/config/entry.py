"""What all that may be written in receivers.yaml is made of: how strict a mapping is, and texts, names and lists."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field

from relay.config.problems import SECRET_FIELDS
from relay.config.references import check_references
from relay.domain.identity import is_receiver_name
from relay.domain.topics import SHARED

MAX_LABELS: Final = 16
_OWNER: Final = re.compile(r"[A-Za-z0-9._:@|/+=~-]{1,64}")
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9._/-]{1,64}")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9._:@|/+=~ -]{0,64}")


class Entry(BaseModel):
    """A mapping with fixed fields."""

    # strict: `rate_limit: "100"` or `enabled: 1` is a slip of the pen, and says so
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


def _text(value: str) -> str:
    check_references(value)
    return value


def _receiver_name(name: str) -> str:
    if name == SHARED:
        raise ValueError(f"{SHARED!r} is the name of the shared lane; no receiver can have it")
    if not is_receiver_name(name):
        raise ValueError("a receiver's name has 1 to 63 of a-z, 0-9 and -, and does not begin with -")
    return name


def _owner(value: str) -> str:
    if not _OWNER.fullmatch(value):
        raise ValueError("an owner is an id of 1 to 64 of a-z, A-Z, 0-9 and . _ : @ | / + = ~ -")
    return value


def _label_name(name: str) -> str:
    if not _LABEL_NAME.fullmatch(name):
        raise ValueError("a label's name has 1 to 64 of a-z, A-Z, 0-9 and . _ / -")
    if name in SECRET_FIELDS:
        raise ValueError(f"{name!r} is what secrets are called here, and a label is none")
    return name


def _label_value(value: str) -> str:
    if not _LABEL_VALUE.fullmatch(value):
        raise ValueError("a label's value has at most 64 of a-z, A-Z, 0-9, space and . _ : @ | / + = ~ -")
    return value


def _few(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > MAX_LABELS:
        raise ValueError(f"{len(labels)} labels; at most {MAX_LABELS}")
    return labels


Text = Annotated[str, AfterValidator(_text)]
SomeText = Annotated[str, Field(min_length=1), AfterValidator(_text)]
ReceiverName = Annotated[str, AfterValidator(_receiver_name)]
OwnerId = Annotated[str, AfterValidator(_owner)]
"""Opaque: whoever it means is somebody else's business."""
Labels = Annotated[
    dict[Annotated[str, AfterValidator(_label_name)], Annotated[str, AfterValidator(_label_value)]],
    AfterValidator(_few),
]
TEXT_OR_LIST: Final = Discriminator(lambda value: "(list)" if isinstance(value, list | tuple) else "(text)")
"""Of a union of the two, so that mistakes are told of the one that was written."""
