"""Ends what a start that was broken off leaves behind: processes that lost their parent would live on with nobody to end them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from evo.descendants import children, end_children, take_in_orphans

PATIENCE_S = 5.0


@contextlib.contextmanager
def nothing_left_of_a_failed_start(end: Callable[[], None]) -> Iterator[None]:
    """Where the block raises, all processes are ended that this one has below it and had not before.

    Within the block, processes below this one that lose their parent become its children, so that none of them is missed.

    Args:
        end: The gentle way, tried first.
    """
    take_in_orphans()
    before = children()
    try:
        yield
    except BaseException:
        end()
        end_children(PATIENCE_S, before)
        raise
    finally:
        take_in_orphans(False)
