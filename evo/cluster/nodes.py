"""The nodes of a Ray cluster as a search sees them: what each offers, which of them leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

ACCELERATOR = "accelerator_type:"
"""How Ray begins the name of the resource that says of which kind a node's GPUs are."""


@dataclass(frozen=True)
class Node:
    """One live node.

    Attributes:
        node_id: Ray's, in hex; a node that comes back has another one.
        name: For people.
        cpus, gpus: What it offers in all, whoever uses it.
        accelerator: Ray's name for the kind of its GPUs, e.g. ``H200``; empty without any.
        here: The driver, and so the engine and its store, are on it.
        leaving: It is being drained: what runs there may end, nothing new should start.
    """

    node_id: str
    name: str
    cpus: int
    gpus: int
    accelerator: str = ""
    here: bool = False
    leaving: bool = False


def live_nodes() -> tuple[Node, ...]:
    """The live nodes, that of the driver first, others in the order of their names."""
    here, leaving = ray.get_runtime_context().get_node_id(), _leaving()
    nodes = (_node(entry, here, leaving) for entry in ray.nodes() if entry["Alive"])
    return tuple(sorted(nodes, key=lambda node: (not node.here, node.name, node.node_id)))


def _node(entry: dict[str, Any], here: str, leaving: frozenset[str]) -> Node:
    offered, node_id = entry["Resources"], entry["NodeID"]
    kinds = (name.removeprefix(ACCELERATOR) for name in sorted(offered) if name.startswith(ACCELERATOR))
    host, address = entry["NodeManagerHostname"], entry["NodeManagerAddress"]
    return Node(
        node_id,
        f"{host} ({address})",
        int(offered.get("CPU", 0)),
        int(offered.get("GPU", 0)),
        next(kinds, ""),
        node_id == here,
        node_id in leaving,
    )


def _leaving() -> frozenset[str]:
    """Nodes that the autoscaler or `ray drain-node` wants to end; Ray offers no public way to ask."""
    return frozenset(ray._private.state.state.get_draining_nodes())
