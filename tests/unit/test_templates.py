"""The templates of the pages, without a browser."""

import pytest

from relay.pages.render import Renderer
from relay.pages.translator import TEMPLATES


@pytest.mark.parametrize("template", sorted(path.name for path in TEMPLATES.glob("*.html")))
def test_a_template_is_well_formed_and_its_filters_exist(template: str) -> None:
    Renderer(str, float)._environment.get_template(template)
