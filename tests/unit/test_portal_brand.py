"""The portal's look: whichever colour is chosen, its text can be read."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.config.setting_layers import load_settings
from relay.config.setting_values import LOGO_SUFFIXES
from relay.domain.errors import UserError
from relay.pages import brand
from relay.pages.brand import LOGO_TYPES, Brand, contrast, parse


@given(st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 255)))
def test_each_colour_is_adapted_until_text_can_be_read(chosen: tuple[int, int, int]) -> None:
    for surfaces in brand._SURFACES.values():
        accent, on_accent, wash = brand._accent(chosen, surfaces)
        assert min(contrast(accent, each) for each in (*surfaces, wash)) >= brand.ENOUGH
        assert contrast(on_accent, accent) >= brand.ENOUGH


def test_a_colour_with_enough_contrast_stays() -> None:
    assert "--accent: light-dark(#0a6b66, " in Brand(colour="#0A6B66").style()
    assert Brand().style() == ""


def test_the_contrast_is_that_of_wcag() -> None:
    assert round(contrast(parse("#000000"), parse("#ffffff")), 2) == 21.0
    assert round(contrast(parse("#777777"), parse("#ffffff")), 2) == 4.48


@pytest.mark.parametrize("colour", ["red", "#fff", "#12345g", "#0a6b66; }"])
def test_only_a_colour_is_one(colour: str) -> None:
    with pytest.raises(UserError, match="RELAY_PORTAL_COLOUR"):
        load_settings({}, {"RELAY_PORTAL_COLOUR": colour})


@pytest.mark.parametrize(("name", "size"), [("a.gif", 10), ("a.png", 70_000), ("missing.png", None)])
def test_a_logo_is_a_picture_of_bounded_size(tmp_path: Path, name: str, size: int | None) -> None:
    if size is not None:
        (tmp_path / name).write_bytes(b"x" * size)
    with pytest.raises(UserError, match="RELAY_PORTAL_LOGO"):
        load_settings({}, {"RELAY_PORTAL_LOGO": str(tmp_path / name)})


def test_a_logo_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    with pytest.raises(UserError, match="RELAY_PORTAL_LOGO: cannot be read: Is a directory"):
        load_settings({}, {"RELAY_PORTAL_LOGO": str(tmp_path / "a.png")})


def test_each_kind_of_logo_has_a_content_type() -> None:
    assert tuple(LOGO_TYPES) == LOGO_SUFFIXES
