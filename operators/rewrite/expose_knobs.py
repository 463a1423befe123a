"""Makes everything that can be tuned a knob at once, so that a search from a foreign kernel begins tunable."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from operators.knobs import Exposed, expose
from operators.rewrite.base import Rewrite, Site
from operators.source import NotApplicableError, Source, parse


class ExposeKnobs(Rewrite):
    """Autotuners, tile sizes and launch options of all kernels become knobs in one step, see `operators.knobs.expose`.

    The child launches what its parent does until tuning picks other values.
    """

    name = "expose_knobs"
    when = "A foreign kernel is to be tuned: always first."
    cites = "Triton documentation, triton.autotune and triton.Config."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site: the whole module."""
        exposed = expose(source.module.code)
        if not exposed.found:
            raise NotApplicableError(exposed.left[0] if exposed.left else "every knob of the module is one already")
        yield Site(f"{', '.join(exposed.names)} are knobs", partial(_applied, exposed))


def _applied(exposed: Exposed) -> cst.Module:
    return parse(exposed.source)
