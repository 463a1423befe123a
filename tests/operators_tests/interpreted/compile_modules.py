"""Compiles every kernel of modules for cuda:90 on a machine without a GPU (a child process of the tests).

Standard input: JSON list of sources; standard output: per source {"cubin": bytes, "masked_loads": count} or {"failure"}.
"""

import importlib.util
import json
import sys
import tempfile
import traceback
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

FLOATS = {"eps", "scale"}


def kind(name):
    if name.endswith("_ptr"):
        return "*i8" if name == "q_ptr" else "*fp16" if name in ("a_ptr", "b_ptr") else "*fp32"
    return "fp32" if name in FLOATS else "i32"


def compiled(source, folder, number):
    path = Path(folder) / f"module_{number}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    answer = {"cubin": 0, "masked_loads": 0}
    for kernel in [item for item in vars(module).values() if isinstance(item, triton.JITFunction)]:
        constants = {p.name: constant(p) for p in kernel.params if p.is_constexpr}
        if not constants:  # called by other kernels
            continue
        signature = {p.name: "constexpr" if p.name in constants else kind(p.name) for p in kernel.params}
        binary = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))
        answer["cubin"] += len(binary.asm["cubin"])
        # an operand after the pointer is the mask
        answer["masked_loads"] += sum(
            "tt.load" in line and "," in line.split(" : ")[0].split("{")[0] for line in binary.asm["ttir"].splitlines()
        )
    return answer


def constant(parameter):
    if isinstance(parameter.default, bool):
        return parameter.default
    return parameter.name.startswith("EVEN") or {"ROWS": 4, "GROUP_M": 8, "STAGES": 3}.get(parameter.name, 64)


def main():
    with tempfile.TemporaryDirectory() as folder:
        answers = []
        for number, source in enumerate(json.load(sys.stdin)):
            try:
                answers.append(compiled(source, folder, number))
            except Exception:  # noqa: BLE001 - the test that started this process reports it
                answers.append({"failure": traceback.format_exc()[-3000:]})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
