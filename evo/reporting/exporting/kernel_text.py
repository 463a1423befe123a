"""The text of one exported kernel: provenance as comments, the judged source with a tuned CONFIG, all configurations as a table."""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from evo.records import CaseResult, Configuration, Evaluation, LatencyKind, TrustLevel
from evo.reporting.exporting.ancestry import Ancestor
from evo.reporting.exporting.literals import WIDTH, literal
from evo.syntax import module_tree
from population_store.base import RunHeader

HOSTED_TEXT = (
    " Its launches depend on values of its inputs, so it was judged in its own process, not replayed; latencies are of calls."
)


def kernel_text(source: str, comment: str, configurations: Mapping[str, Configuration]) -> str:
    """The module to write.

    Args:
        source: As judged.
        comment: Lines of `provenance`.
        configurations: Case name → tuned configuration.
    """
    return comment + tuned_module(source, usual_configuration(configurations), configurations)


def tuned_module(source: str, configuration: Configuration, configurations: Mapping[str, Configuration]) -> str:
    """A module with its CONFIG set, and below it the table of what is best per case.

    Args:
        source: With a literal CONFIG, or without knobs.
        configuration: For CONFIG.
        configurations: Case name → tuned configuration.
    """
    parts = [with_configuration(source, configuration).strip("\n") + "\n"]
    if configuration:
        table = {name: dict(item) for name, item in configurations.items()}
        text = literal(table, column=len("TUNED_CONFIGURATIONS = "))
        parts.append("\n\n# Judged per case; the apply() of an exported package sets CONFIG to that of the nearest one.\n")
        parts.append(f"TUNED_CONFIGURATIONS = {text}\n")
    return "".join(parts)


def usual_configuration(configurations: Mapping[str, Configuration]) -> Configuration:
    """The configuration of most cases, of those the first: what CONFIG says for a reader who imports the module alone."""
    return Counter(configurations.values()).most_common(1)[0][0]


def provenance(
    task: str, rank: int, evaluation: Evaluation, descent: Sequence[Ancestor], header: RunHeader, verified: bool
) -> str:
    """Comment lines: what was measured or estimated, on what, and how the kernel came about."""
    lines = [
        f"Kernel {rank} of the Pareto front of task {task}, found by triton-evolve.",
        f"Variant {evaluation.variant_id}; run {header.name}, seed {header.seed}, begun {header.created}; versions {header.versions}.",
        f"Device: {evaluation.device}. Trust level: {evaluation.trust}. "
        + ("Verified in a fresh process." if verified else "Judged during the search, not verified again.")
        + (HOSTED_TEXT if evaluation.trust is TrustLevel.HOSTED else "")
        + (f" Besides: {'; '.join(evaluation.checks)}." if evaluation.checks else ""),
        f"Fitness {evaluation.fitness:.4f} (lower bound of the speedup against the starting kernel); error "
        f"{evaluation.error_ratio:.3f} of what is allowed; at most {evaluation.peak_bytes} bytes beyond the inputs.",
        f"Launch plan {evaluation.plan_hash}.",
        "",
        "Cases (latency; speedup with its 95 % interval; error as a share of the allowed):",
        *(f"  {case_text(case, evaluation)}" for case in evaluation.cases),
        "",
        "Descent, oldest first:",
        *(f"  {_step_text(step)}" for step in descent),
    ]
    return "".join(_commented(line) for line in lines) + "\n"


def case_text(case: CaseResult, evaluation: Evaluation) -> str:
    """One case in words; an estimate is called one."""
    interval = f"{case.speedup:.3f} [{case.speedup_low:.3f}, {case.speedup_high:.3f}]"
    return (
        f"{case.case}: {case.latency_us:.4g} us, {interval}, {kind_text(evaluation.latency_kind, evaluation.device, case.pairs)}; "
        f"error {case.error_ratio:.3f}; {case.configuration}"
    )


def kind_text(kind: LatencyKind | None, device: str, pairs: int) -> str:
    """How a latency came about."""
    if kind is LatencyKind.MEASURED:
        return f"measured on {device}, {pairs} pairs"
    return "modelled estimate, not measured"


def _step_text(step: Ancestor) -> str:
    others = f" with {', '.join(step.parents[1:])}" if len(step.parents) > 1 else ""
    fitness = "" if step.fitness is None else f" (fitness {step.fitness:.4f})"
    return f"request {step.number}, {step.operator}{others}, lineage {step.lineage}: {step.variant_id}{fitness}: {step.strategy}"


def _commented(line: str) -> str:
    """A line, wrapped, as comments; whatever a strategy contains cannot leave the comment."""
    indent = line[: len(line) - len(line.lstrip(" "))]
    clean = "".join(item if item.isprintable() else " " for item in line)
    wrapped = textwrap.wrap(" ".join(clean.split()), WIDTH - len(indent) - 6, break_on_hyphens=False) or [""]
    return "".join(f"# {indent}{'    ' if number else ''}{part}".rstrip() + "\n" for number, part in enumerate(wrapped))


def with_configuration(source: str, configuration: Configuration) -> str:
    """The source with the literal of CONFIG replaced; everything else stays as it is, character by character."""
    values = {key: value for key, value in configuration.items() if not key.startswith("autotune:")}
    node = _config_node(module_tree(source))
    if node is None or not values:
        return source
    present = ast.literal_eval(node)
    if present == values:
        return source
    ordered: dict[str, Any] = {key: values.get(key, present[key]) for key in present}
    # Columns of the syntax tree count UTF-8 bytes, and its lines end where Python's do.
    lines = source.replace("\r\n", "\n").replace("\r", "\n").encode().split(b"\n")
    assert node.end_lineno is not None
    head = [*lines[: node.lineno - 1], lines[node.lineno - 1][: node.col_offset]]
    tail = [lines[node.end_lineno - 1][node.end_col_offset :], *lines[node.end_lineno :]]
    return (b"\n".join(head) + literal(ordered, column=node.col_offset).encode() + b"\n".join(tail)).decode()


def _config_node(tree: ast.Module) -> ast.expr | None:
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == "CONFIG" for target in targets):
            return node.value
    return None
