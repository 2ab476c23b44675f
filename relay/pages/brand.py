"""The look of the portal: the name, logo and colour of the product that it is a part of. Pure but for reading the logo.

The chosen colour is adapted until text in it, and on it, has the contrast of WCAG 2 AA on each surface of the pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Theme = Literal["system", "light", "dark"]
Colour = tuple[int, int, int]
ENOUGH: Final = 4.5
"""Contrast of text to its background, by WCAG 2 AA."""
LOGO_TYPES: Final = {".svg": "image/svg+xml", ".png": "image/png", ".webp": "image/webp", ".jpg": "image/jpeg"}
_WHITE: Final = (255, 255, 255)
_BLACK: Final = (0, 0, 0)
_WASH: Final = 0.1
"""Share of the colour in the background of the present page's entry."""
_SURFACES: Final[dict[str, Sequence[Colour]]] = {
    "light": ((255, 255, 255), (246, 247, 247), (238, 241, 241)),
    "dark": ((22, 27, 30), (15, 19, 21), (11, 14, 16)),
}
"""The backgrounds `--card`, `--page` and `--sunk` of relay.css."""


@dataclass(frozen=True, slots=True)
class Brand:
    """`colour`: `#rrggbb`; None: that of the relay. `theme`: `system`: the visitor chooses. `logo`: a file."""

    name: str = "Relay"
    colour: str | None = None
    theme: Theme = "system"
    logo: Path | None = None

    @property
    def logo_name(self) -> str | None:
        """The name of the logo among the static files, with the suffix of its type."""
        return None if self.logo is None else f"portal-logo{self.logo.suffix.lower()}"

    def logo_file(self) -> tuple[str, bytes] | None:
        """The name and the bytes of that file."""
        if self.logo is None or self.logo_name is None:
            return None
        return self.logo_name, self.logo.read_bytes()

    def style(self) -> str:
        """The style sheet that replaces the colours of the relay; empty without a colour."""
        if self.colour is None:
            return ""
        chosen = parse(self.colour)
        light, dark = (_accent(chosen, surfaces) for surfaces in _SURFACES.values())
        named = zip(("--accent", "--on-accent", "--accent-wash"), light, dark, strict=True)
        pairs = "".join(f"{name}: light-dark({text(one)}, {text(other)}); " for name, one, other in named)
        return f":root {{ {pairs}}}\n"


RELAY: Final = Brand()
"""The look of the pages outside the portal."""


def parse(colour: str) -> Colour:
    """The colour of `#rrggbb`."""
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red, green, blue


def text(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def contrast(one: Colour, other: Colour) -> float:
    """The contrast of two colours, from 1 to 21, by WCAG 2."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: Colour) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (each / 255 for each in colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _accent(chosen: Colour, surfaces: Sequence[Colour]) -> tuple[Colour, Colour, Colour]:
    """The colour of links and buttons, of the text on them, and of the background of the present page's entry. The
    first is as near to `chosen` as the contrast permits."""
    towards = _BLACK if _luminance(surfaces[0]) > 0.5 else _WHITE
    for step in range(101):
        accent = _mixed(towards, chosen, step / 100)
        wash = _mixed(accent, surfaces[0], _WASH)
        on_accent = max((_WHITE, _BLACK), key=lambda each: contrast(each, accent))
        if min(contrast(accent, each) for each in (*surfaces, wash)) >= ENOUGH <= contrast(on_accent, accent):
            return accent, on_accent, wash
    raise AssertionError("black and white have the contrast")


def _mixed(one: Colour, other: Colour, share: float) -> Colour:
    """`share` of `one`, the rest of `other`."""
    red, green, blue = (round(a * share + b * (1 - share)) for a, b in zip(one, other, strict=True))
    return red, green, blue
