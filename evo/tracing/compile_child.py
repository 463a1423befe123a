"""What the compiler child runs: recorded TTIR to a binary for a named target, with its resources. No candidate Python here."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import triton
import triton.compiler

from evo.tracing.targets import TARGETS


def compile_kernel(request: dict[str, Any]) -> dict[str, Any]:
    """Compiles one kernel.

    Args:
        request: ``ttir``, ``options``, ``target``, ``sass`` (whether to count instructions).

    Returns:
        ``{"binary": base64, "metadata": {…}, "resources": {…}}`` or ``{"failure": {…}}``.
    """
    path = Path("kernel.ttir")
    path.write_text(request["ttir"])
    target = TARGETS[request["target"]]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = triton.compiler.compile(str(path), target=target.gpu_target, options=request["options"])
    except Exception as error:  # noqa: BLE001  whatever Triton raises on hostile TTIR is a verdict
        return {"failure": _failure(error)}
    metadata = compiled.metadata._asdict()
    kept = json.loads(json.dumps(metadata, default=vars))
    shared = int(metadata["shared"])
    if shared > target.max_shared_bytes:
        text = f"needs {shared} bytes of shared memory, {target.name} has {target.max_shared_bytes}; use smaller tiles or fewer stages"
        return {
            "failure": {"status": "out_of_resources", "stage": "compile", "message": text, "signature": "out_of_resources:shared"}
        }
    data = compiled.asm["cubin" if target.backend == "cuda" else "hsaco"]
    resources = _cuda_resources(data, request["sass"]) if target.backend == "cuda" else _hip_resources(compiled.asm["amdgcn"])
    resources["shared_bytes"] = shared
    return {"binary": base64.b64encode(data).decode(), "metadata": kept, "resources": resources}


def _failure(error: Exception) -> dict[str, str]:
    text = str(error).strip() or type(error).__name__
    kind = type(error).__name__
    if "OutOfResources" in kind or "out of resource" in text:
        status = "out_of_resources"
    else:
        status = "compile_error"
    line = re.sub(r"[\d'\"]+|0x[0-9a-f]+", "#", text.splitlines()[0])[:120]
    return {"status": status, "stage": "compile", "message": f"{kind}: {text}"[:8000], "signature": f"{status}:{kind}:{line}"}


def _tool(name: str) -> str:
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def _cuda_resources(cubin: bytes, sass: bool) -> dict[str, Any]:
    path = Path("kernel.cubin")
    path.write_bytes(cubin)
    usage = subprocess.run(
        [_tool("cuobjdump"), "--dump-resource-usage", str(path)], capture_output=True, text=True, check=True
    ).stdout
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", usage)}
    instructions: Counter[str] = Counter()
    if sass:
        listing = subprocess.run([_tool("nvdisasm"), "-c", str(path)], capture_output=True, text=True, check=True).stdout
        instructions.update(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*(?:\.[A-Z0-9_]+){0,3})", listing))
    return {
        "registers": found.get("REG", 0),
        "spill_bytes": found.get("LOCAL", 0) + found.get("STACK", 0),
        "instructions": dict(instructions),
    }


def _hip_resources(assembly: str) -> dict[str, Any]:
    def number(key: str) -> int:
        match = re.search(rf"\.{key}:\s+(\d+)", assembly)
        return int(match.group(1)) if match else 0

    counted = re.findall(r"^\s+((?:v|s|ds|global|buffer|flat)_[a-z0-9_]+)", assembly, re.MULTILINE)
    return {
        "registers": number("vgpr_count") + number("agpr_count"),
        "spill_bytes": 4 * (number("vgpr_spill_count") + number("sgpr_spill_count")),
        "instructions": dict(Counter(counted)),
    }


_WARM_UP = """
module { tt.func public @warm(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}) {
    %one = arith.constant 1.000000e+00 : f32
    tt.store %x, %one : !tt.ptr<f32>
    tt.return } }
"""


def warm_up() -> None:
    """Compiles a one-line kernel in the fork server, so that every child starts with Triton's compiler loaded."""
    answer = compile_kernel({"ttir": _WARM_UP, "options": {}, "target": "cuda:90", "sass": False})
    if "binary" not in answer:
        raise RuntimeError(f"Triton cannot compile on this machine: {answer['failure']['message']}")


if os.environ.get("TRITON_EVOLVE_ROLE") == "compile":
    warm_up()
