"""The walls that no linter watches: declared dependencies, what is in the wheel, files and functions that stay small."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("evo", "operators", "population_store")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60
OF_EXTRAS = {"ik_llama_cpp": ["ik-llama-cpp-python"]}
"""Distributions of modules that need not be installed here."""
FOR_TESTS = {"pytest", "hypothesis"}
"""Used by `population_store.testing`, the suite that backends of others subclass; whoever does has them."""


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_rooms_import_downward_only() -> None:
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None) == 0


def test_what_is_imported_is_declared() -> None:
    optional = [text for extra in PROJECT["project"]["optional-dependencies"].values() for text in extra]
    declared = {normal(re.split(r"[\[<>=!~ ;]", text)[0]) for text in [*PROJECT["project"]["dependencies"], *optional]}
    distributions = packages_distributions()
    undeclared = {}
    for path in modules():
        for name in set(imported(tree_of(path))) - sys.stdlib_module_names - set(PACKAGES) - FOR_TESTS:
            if not declared & {normal(item) for item in distributions.get(name, OF_EXTRAS.get(name, [name]))}:
                undeclared[name] = str(path.relative_to(ROOT))
    assert undeclared == {}


def test_what_is_declared_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {normal(name) for name in re.findall(r"^([\w.-]+)==", pins, re.MULTILINE)}
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]
    assert {normal(re.split(r"[\[<>=!~ ;]", text)[0]) for text in wanted} - pinned == set()


def test_every_file_says_its_reason_and_stays_small() -> None:
    problems = []
    for path in modules():
        name = str(path.relative_to(ROOT))
        tree = tree_of(path)
        if not (ast.get_docstring(tree) or "").strip():
            problems.append(f"{name}: no docstring")
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > MAX_FILE_LINES:
            problems.append(f"{name}: {lines} lines")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    problems.append(f"{name}: {node.name} has {length} lines")
    assert problems == []


def test_importing_evo_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import evo; print(*sorted(set(sys.modules) - before - {'evo'}))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in a wheel built from a copy of the sources, so that no earlier build leaks into it."""
    copy = tmp_path_factory.mktemp("wheel")
    for package in (*PACKAGES, "configs"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "-w",
        str(copy / "dist"),
        ".",
    ]
    ran = subprocess.run(build, cwd=copy, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    (wheel,) = (copy / "dist").glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_has_every_file_of_the_packages(wheel_files: set[str]) -> None:
    files = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    wanted = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    assert wanted - wheel_files == set()


def test_the_wheel_has_configurations_and_licence_and_no_tests(wheel_files: set[str]) -> None:
    assert any(name.endswith("share/triton-evolve/configs/quickstart.yaml") for name in wheel_files)
    assert any(name.endswith("licenses/LICENSE") for name in wheel_files)
    assert not [name for name in wheel_files if name.startswith(("tests/", "experiments/"))]
