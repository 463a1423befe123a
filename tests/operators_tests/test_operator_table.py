"""The page about operators says what the operators are."""

from operators.rewrite.base import Rewrite
from operators.table import PAGE, found, page


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m operators.table --write"


def test_every_rewrite_has_a_row_and_a_section():
    text = page()
    for cls in found():
        assert f"### {cls.name}\n" in text
        if issubclass(cls, Rewrite):
            assert f"| [`{cls.name}`](#{cls.name}) |" in text
