"""Decides which device code a launch plan may carry: what computes on the kernel's own tensors, and nothing that looks beyond them.

The TTIR of a plan is text of a hostile process. A trusted process will run its binary on the GPU, so this allows the dialects that
Triton's front end emits, and refuses in them what no kernel needs in order to compute: absolute addresses, printing, functions of
other libraries than the device's own, and inline assembly that does anything but arithmetic on its operands (memory, control flow,
special registers such as clocks or the multiprocessor's number). Text that cannot be read with certainty is refused too. What
remains can still read and write past its tensors by wrong offsets; guard bands, bounds and sanitizers are there for that.

Looking takes time in proportion to the text, whatever it is: a search that fails must not begin again further on and run to the end.
"""

from __future__ import annotations

import re

_DIALECTS = frozenset({"tt", "arith", "math", "scf", "cf", "ub"})
_BESIDES = frozenset({"llvm.intr.assume", "gpu.barrier", "ttg.barrier"})
"""`tl.assume`: a promise on values, without effect. `tl.debug_barrier` (by Triton version): threads of one program wait for each other."""
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|.)", re.DOTALL)
_OPERATION = re.compile(r"(?<![\w.%@!#^$])([A-Za-z_]\w*)\.([A-Za-z_][\w.]*)")
_ASSEMBLY = re.compile(r'tt\.elementwise_inline_asm "((?:[^"\\\n]|\\.)*)" \{')
_EXTERN = "tt.extern_elementwise "
_LIBRARY = re.compile(r'[^"{]*\{libname = "(?:libdevice)?", libpath = "", pure = \w+, symbol = "__(?:nv|ocml)_\w+"\}')
_MAX_ASSEMBLY = 1 << 16
"""Characters of all inline assembly of one kernel, and registers that one text may declare."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|(\Z))", re.DOTALL)

_PTX = frozenset(
    [
        "abs",
        "add",
        "addc",
        "bfe",
        "bfi",
        "bfind",
        "bmsk",
        "brev",
        "clz",
        "cnot",
        "copysign",
        "cos",
        "cvt",
        "div",
        "dp2a",
        "dp4a",
        "ex2",
        "fma",
        "fns",
        "lg2",
        "lop3",
        "mad",
        "mad24",
        "madc",
        "max",
        "min",
        "mov",
        "mul",
        "mul24",
        "neg",
        "not",
        "or",
        "popc",
        "prmt",
        "rcp",
        "rem",
        "rsqrt",
        "sad",
        "selp",
        "set",
        "setp",
        "shf",
        "shl",
        "shr",
        "sin",
        "slct",
        "sqrt",
        "sub",
        "subc",
        "szext",
        "tanh",
        "testp",
        "xor",
        "vabsdiff2",
        "vabsdiff4",
        "vadd",
        "vadd2",
        "vadd4",
        "vavrg2",
        "vavrg4",
        "vmad",
        "vmax",
        "vmax2",
        "vmax4",
        "vmin",
        "vmin2",
        "vmin4",
        "vset",
        "vset2",
        "vset4",
        "vshl",
        "vshr",
        "vsub",
        "vsub2",
        "vsub4",
    ]
)
"""Opcodes that only compute: no memory, no control flow, nothing of other threads."""
_OPERAND = re.compile(r"\$(\d+|\{\d+(:\w)?\})")
_VECTOR = re.compile(r"\{([^{};]*)\}")
"""Braces around statements hold semicolons, braces around the parts of an operand do not."""
_IDENTIFIER = re.compile(r"[A-Za-z_%$][\w%$]*")
_NUMBER = re.compile(r"(?<![\w%$])(?:0[xXfFdDbB][0-9A-Fa-f]+U?|\d+(\.\d+)?([eE][+-]?\d+)?U?)")
_AMD = re.compile(r"v_(?!readlane|readfirstlane|writelane|interp|movrel|swaprel)\w+")


def code_problem(ttir: str) -> str:
    """What is not allowed in a kernel's TTIR, or an empty string."""
    if not _strings_end(ttir):
        return "a text in quotes without an end, or a backslash outside of one"
    foreign = _foreign_dialect(ttir)
    if foreign:
        return f"an operation of the dialect {foreign}; a kernel has those of {', '.join(sorted(_DIALECTS))}"
    names = _ESCAPE.sub(_unescaped, ttir) if "\\" in ttir else ttir
    if "tt.int_to_ptr" in names:
        return "it makes an address of an integer; pass tensors and add offsets to their pointers"
    if "tt.print" in names:
        return "it prints (tl.device_print); take that out"
    if names.count("extern_elementwise") != sum(_LIBRARY.match(part) is not None for part in ttir.split(_EXTERN)[1:]):
        return "it calls a function of a library that is not the device's own; use triton.language.extra.libdevice"
    texts = _ASSEMBLY.findall(ttir)
    if len(texts) != names.count("elementwise_inline_asm"):
        return "inline assembly in a form that cannot be read"
    if sum(map(len, texts)) > _MAX_ASSEMBLY:
        return f"more than {_MAX_ASSEMBLY} characters of inline assembly"
    for text in texts:
        problem = assembly_problem(_ESCAPE.sub(_unescaped, text))
        if problem:
            return f"inline assembly may only compute on its operands, but {problem}"
    return ""


def assembly_problem(text: str) -> str:
    """What an inline assembly text does besides arithmetic on its operands, or an empty string.

    Args:
        text: PTX or AMDGCN, as a kernel's author wrote it.
    """
    text = _COMMENT.sub(lambda found: " " if found[1] is None else " /* ", text)  # one without an end is no opcode
    text = _VECTOR.sub(r" \1 ", _OPERAND.sub(" 0 ", text))
    declared: set[str] = set()
    for statement in re.split(r"[;\n{}]" if "v_" in text else r"[;{}]", text):
        words = statement.replace(",", " ").replace("|", " ").split()
        if not words:
            continue
        if words[0] == ".reg":
            for word in words[2:]:
                declared |= set(_registers(word))
                if len(declared) > _MAX_ASSEMBLY:
                    return f"declares more than {_MAX_ASSEMBLY} registers"
            continue
        if re.fullmatch(r"@!?[\w%$]+", words[0]):
            words = words[1:]
        opcode, operands = words[0] if words else "", " ".join(words[1:])
        if _AMD.fullmatch(opcode):
            found = next((word for word in _IDENTIFIER.findall(operands) if not re.fullmatch(r"v\d+|vcc|s\d+", word)), "")
        elif opcode.split(".")[0] in _PTX:
            rest = _NUMBER.sub(" ", operands)
            found = next((word for word in _IDENTIFIER.findall(rest) if word not in declared and word != "_"), "")
        else:
            return f"has {opcode or 'a bare predicate'!r}"
        if found or set(operands) & set('[]$@"\\'):
            return f"{opcode} uses {found or operands!r}"
    return ""


def _registers(word: str) -> list[str]:
    """Names that one item of a ``.reg`` directive declares: ``t``, or ``r<3>`` for r0 to r2."""
    several = re.fullmatch(r"(\w+)<(\d{1,3})>", word)
    names = [f"{several[1]}{index}" for index in range(int(several[2]))] if several else [word]
    return [name for name in names if "%" not in name]  # a name with % could be that of a special register


def _strings_end(ttir: str) -> bool:
    """Whether every quote opens or closes a string, and backslashes stand in strings alone. The first one that does not ends the look."""
    at = 0
    while (quote := ttir.find('"', at)) >= 0:
        found = _STRING.match(ttir, quote)
        if found is None or "\\" in ttir[at:quote]:
            return False
        at = found.end()
    return "\\" not in ttir[at:]


def _foreign_dialect(ttir: str) -> str:
    bare = _STRING.sub(lambda found: f" {_ESCAPE.sub(_unescaped, found[1])} " if _names_operation(found) else ' "" ', ttir)
    for found in _OPERATION.finditer(bare):
        dialect, operation = found.groups()
        if dialect not in _DIALECTS and f"{dialect}.{operation}" not in _BESIDES:
            return str(dialect)
    return ""


def _names_operation(found: re.Match[str]) -> bool:
    """Whether a string is followed by operands: the general form of an operation, such as ``"tt.reduce"(%0)``."""
    return found.string[found.end() : found.end() + 64].lstrip()[:1] == "("


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if len(found[1]) == 2 else {"n": "\n", "t": "\t"}.get(found[1], found[1])
