"""What every rewrite must keep, found by walking the package: a new one is proved here without being listed.

Children of each rewrite on a fixed corpus compute what their parents do (under Triton's interpreter), compile for a GPU that is not there,
and keep comments. Where the environment names folders of TritonBench-G, Liger, FlagGems and further projects, at least five of their
kernels prove each rewrite (marked slow).
"""

import argparse
import ast
import inspect
import os

import pytest

from evo.registry import find_operators
from experiments.rewrite_applicability import FIVE, failures, looked_at, row
from experiments.rewrites.corpus import SMALL, TRITONBENCH, foreign_specimens, own_specimens
from experiments.rewrites.flag_gems import FLAG_GEMS
from experiments.rewrites.other_projects import PROJECTS
from experiments.rewrites.proving import LIGER, Job, bound, compiled, interpreted
from operators.rewrite.base import Rewrite
from operators.rewriting import offers

REWRITES = {name: cls() for name, cls in find_operators().items() if issubclass(cls, Rewrite)}
every = pytest.mark.parametrize("name", REWRITES)
SPECIMENS = {specimen.name: specimen for specimen in own_specimens()}
CORPUS = [
    "starts/attention", "starts/gemm_bias_gelu", "starts/rms_norm", "starts/softmax", "kernels/looped_norm", "kernels/scale_columns",
    "tuning/gemm", "tuning/gemm named", "tuning/column_sum named", "tuning/row_sum named",
]  # fmt: skip
ONCE = [
    "kernels/atomic_sums", "kernels/module_weights", "kernels/row_moments", "kernels/two_launches", "kernels/two_pass_norm",
    "kernels/weight_gradient",
]  # fmt: skip
"""Kernels for one rewrite or two, on which every rewrite is tried at one site."""
ALONE = {
    "kernels/one_pass_norm": {"centre_variance", "name_arguments"},
    "kernels/shared_weights": {"flatten_where", "hoist_loads", "reuse_loads"},
    "kernels/wrapped_copy": {"even_wraps", "unfold_autotune"},
}
"""Kernels on which these alone are tried, at one site."""
KERNELS = [*CORPUS, *ONCE, *ALONE]
BLACKWELL = {"specialise_warps"}
"""Rewrites for cuda:100 alone."""


def target_of(name):
    return "cuda:100" if name in BLACKWELL else "cuda:90"


@pytest.fixture(scope="module")
def children():
    """(kernel, rewrite, strategy, source) of one or two sites of each rewrite on each kernel of the corpus."""
    return [
        (kernel, name, offer.strategy, offer.source)
        for kernel in KERNELS
        for name, rewrite in REWRITES.items()
        if name in ALONE.get(kernel, REWRITES)
        for offer in offers(rewrite, SPECIMENS[kernel].source, target_of(name), most=2 if kernel in CORPUS else 1).children
    ]


def test_every_rewrite_has_a_kernel_here(children):
    assert set(REWRITES) == {name for _, name, _, _ in children}


def by_kernel(found):
    return {kernel: [item for item in found if item[0] == kernel] for kernel in KERNELS}


def jobs_of(found):
    grouped = {kernel: items for kernel, items in by_kernel(found).items() if items}
    jobs = [
        Job(SPECIMENS[kernel].source, tuple(item[3] for item in items), SPECIMENS[kernel].driver, SMALL)
        for kernel, items in grouped.items()
    ]
    return jobs, list(grouped.values())


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_children_compute_what_their_parents_do(children, every):
    jobs, groups = jobs_of(children[::every])
    problems = []
    for items, answer in zip(groups, interpreted(jobs), strict=True):
        assert "failure" not in answer, (items[0][0], answer)
        for (kernel, name, strategy, source), verdict in zip(items, answer["children"], strict=True):
            right = "failure" not in verdict and verdict["error"] <= bound(SPECIMENS[kernel].source, exact=REWRITES[name].exact)
            if not right:
                problems.append(f"{name} on {kernel}: {strategy}: {verdict}\n{source}")
    assert not problems, "\n\n".join(problems)


@pytest.mark.slow
def test_children_compile_for_a_gpu_without_one(children):
    first = {}
    for item in children:
        first.setdefault(item[1], item)  # one per rewrite: the slow test compiles the others
    jobs, groups = jobs_of([item for item in first.values() if item[1] not in BLACKWELL])
    for items, answer in zip(groups, compiled(jobs), strict=True):
        for (kernel, name, strategy, source), verdict in zip(items, answer["children"], strict=True):
            assert verdict.get("kernels", 0) > 0, f"{name} on {kernel}: {strategy}: {verdict}\n{source}"


def test_comments_and_what_is_no_kernel_or_launch_survive(children):
    for kernel, name, strategy, source in children:
        before = SPECIMENS[kernel].source
        for line in before.splitlines():
            if "#" in line:
                assert line[line.index("#") :] in source, f"{name} on {kernel}: {strategy} loses {line}"
        assert ast.get_docstring(ast.parse(before)) == ast.get_docstring(ast.parse(source))


@every
def test_a_rewrite_says_what_it_is_when_it_helps_and_where_it_is_from(name):
    cls = type(REWRITES[name])
    assert cls.__doc__
    assert cls.when.endswith(".")
    assert cls.cites.endswith(".")
    lines = inspect.getsource(inspect.getmodule(cls)).count("\n")
    assert lines <= 150, f"{cls.__module__} has {lines} lines: its parts can have files of their own"


@every
def test_a_target_that_lacks_something_is_told(name):
    found = offers(REWRITES[name], SPECIMENS["starts/softmax"].source, "hip:gfx942")
    assert found.children or found.reason or all(site.reason for site in found.sites)


@pytest.mark.slow
@pytest.mark.skipif(
    not foreign_specimens(), reason="no folder of another project is named, see experiments/rewrite_applicability.py"
)
def test_children_of_other_projects_compute_what_their_parents_do(tmp_path):
    given = argparse.Namespace(
        kept=tmp_path / "kept", enough=FIVE, workers=2, deadline_s=5.0, most=1, limit_s=float("inf"), compile=False
    )
    outcomes = looked_at(foreign_specimens(), list(REWRITES), given)
    assert failures(outcomes) == []
    if all(name in os.environ for name in (TRITONBENCH, LIGER, FLAG_GEMS, PROJECTS)):
        assert {name for name in REWRITES if row(name, outcomes, FIVE)["proved"] < FIVE} == set()
