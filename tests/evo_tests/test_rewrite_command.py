"""`triton-evolve rewrite` lists what applies to a kernel and shows one move as a diff."""

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evo.errors import InputError
from evo.main import app

SOFTMAX = Path(__file__).parents[2] / "evo" / "tasks" / "starts" / "softmax.py"


def called(*arguments):
    return CliRunner().invoke(app, ["rewrite", *map(str, arguments)])


def test_the_list_numbers_sites_that_can_be_applied():
    listed = called(SOFTMAX, "--list")
    assert listed.exit_code == 0, listed.output
    rows = [line.split(maxsplit=2) for line in listed.output.splitlines()]
    assert ["reciprocal_division", "1", "softmax_kernel multiplies by reciprocals of its rows' values"] in [
        [cell.strip() for cell in row] for row in rows
    ]
    assert "swizzle_programs" not in listed.output
    assert "does not use two axes of a grid" in called(SOFTMAX, "--all").output


def test_the_diff_makes_the_child_that_is_written(tmp_path):
    out = tmp_path / "child.py"
    shown = called(SOFTMAX, "--apply", "reciprocal_division", "--out", out)
    assert shown.exit_code == 0, shown.output
    assert "-    y = numerator / tl.sum(numerator, axis=0)\n" in shown.stdout
    assert "rounding" in shown.stderr
    copy = tmp_path / "copy.py"
    copy.write_text(SOFTMAX.read_text())
    subprocess.run(["patch", "-s", str(copy)], input=shown.stdout, text=True, check=True)
    assert copy.read_text() == out.read_text()


def test_what_does_not_apply_says_why_and_fails():
    refused = called(SOFTMAX, "--apply", "swizzle_programs")
    assert refused.exit_code == 1
    assert "does not use two axes of a grid" in refused.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--apply", "swizzle"), "swizzle_programs"),
        (("--apply", "reciprocal_division", "--site", "9"), "1 … 1"),
        (("--site", "1"), "--apply"),
        (("--apply", "reciprocal_division", "--list"), "--apply"),
        (("--apply", "reciprocal_division", "--out", SOFTMAX), "exists"),
    ],
)
def test_mistakes_are_told(arguments, said):
    failed = called(SOFTMAX, *arguments)
    assert isinstance(failed.exception, InputError)
    assert said in str(failed.exception)
