"""A text's syntax tree does not depend on what garbage collection runs while it is built."""

from __future__ import annotations

import ast
import gc
import inspect
from collections.abc import Iterator

import pytest

from evo.syntax import expression_tree, module_tree

SOURCE = inspect.getsource(ast)


class Parsing:
    """Garbage in a cycle whose destructor parses, as printing a traceback does."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        self.deeper(7)

    def deeper(self, frames: int) -> None:
        if frames:
            self.deeper(frames - 1)
        else:
            ast.parse("x = 1 + 2 * 3")


@pytest.fixture
def _busy_collector() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(50)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_busy_collector")
def test_a_parse_within_a_parse_harms_neither() -> None:
    expected = ast.dump(module_tree(SOURCE))
    for _ in range(5):
        Parsing()
        assert ast.dump(module_tree(SOURCE)) == expected
        Parsing()
        assert len(ast.dump(expression_tree("[" + "f(x), " * 2000 + "]"))) > 2000


def test_errors_of_the_text_stay_errors() -> None:
    with pytest.raises(SyntaxError):
        module_tree("def f(:")
    with pytest.raises(SyntaxError):
        expression_tree("x = 1")
    with pytest.raises((SyntaxError, ValueError), match="null"):
        module_tree("x\0")
