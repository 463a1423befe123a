"""The folder an export is written to: prepared beside its place, then put there in one step; nothing of others is overwritten."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evo.errors import InputError

MARKER = "front.json"
"""Names what an export made, so that a later one may replace it; other things that are written whole have markers of other names."""
_MAKER = "triton-evolve"
_CACHES = {"__pycache__", ".pytest_cache"}


@contextmanager
def staged(out: Path, marker: Mapping[str, Any], name: str = MARKER) -> Iterator[Path]:
    """Gives an empty folder to write to; puts it at `out` when the block ends without an exception, and removes it otherwise.

    Args:
        out: Where it shall be.
        marker: What the marker says besides what was made.
        name: Of the marker.

    Raises:
        InputError: `out` cannot be written.
    """
    check_free(out, name)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise InputError(str(out), action=f"cannot be written: {error.strerror}") from error
    try:
        yield stage
        made = sorted(path.name for path in stage.iterdir())
        (stage / name).write_text(json.dumps({"made_by": _MAKER, "made": [*made, name], **marker}, indent=1) + "\n")
        stage.chmod(0o755)
        _put(stage, out)
    except OSError as error:
        raise InputError(str(out), action=f"cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def check_free(out: Path, name: str = MARKER) -> None:
    """Checks that an export may be put at `out`.

    Raises:
        InputError: Something stands there that no export made.
    """
    if not out.exists() and not out.is_symlink():
        return
    action = "give another --out; only an empty folder or an earlier export is replaced"
    if out.is_symlink() or not out.is_dir():
        raise InputError(str(out), given="something that is no folder", action=action)
    found = {path.name for path in out.iterdir()}
    strange = sorted(found - _made(out / name) - _CACHES)
    if strange:
        raise InputError(str(out), given=f"a folder with {', '.join(strange[:3])}", action=action)


def _made(path: Path) -> set[str]:
    try:
        marker = json.loads(path.read_text(encoding="utf-8"))
        return {str(name) for name in marker["made"]} if marker.get("made_by") == _MAKER else set()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()  # no marker of ours: whatever is there belongs to someone else


def _put(stage: Path, out: Path) -> None:
    """A rename each way: there is a moment without `out`, but never one with half of it."""
    if not out.exists():
        stage.rename(out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}-old-", dir=out.parent))
    out.rename(old / "front")
    try:
        stage.rename(out)
    except OSError:
        (old / "front").rename(out)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
