"""Counts what one program of a kernel does, from its TTIR and the launch's arguments: accesses, products, trips of loops.

The text is read line by line; nothing is run. Scalars are propagated from constants, integer arguments and grid sizes, with program
ids at the middle of their range and, where the first or the last program does other work, at several places of it, of which the mean
counts: a causal loop has its average trips, and a grid does not look idle because one program does the work of all. A loop whose
bounds stay unknown (they come from memory, or it is a `while`) takes `unknown_trips` from the caller. Both branches of an `if` are
counted; calls of functions that are not inlined, and inline assembly, are not looked into.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

MAX_TRIPS = 1e7
MIDDLE = 0.5
PLACES = tuple(number / 8 for number in range(9))
"""Where in the grid programs are looked at that do not all do the same work."""

_ARGUMENT = re.compile(r"(%\w+): ")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)([^,<>]+(?:<[^<>]*>)?)")
_FOR = re.compile(
    r"(?:(%\w+)(?::\d+)? = )?scf\.for (?:unsigned )?(%\w+) = (\S+) to (\S+) step (\S+)(?: iter_args\((.*?)\) -> \((.*)\))?"
)
_ASSIGNED = re.compile(r"(%\w+)(?::\d+)? = (.*)")
_CONSTANT = re.compile(r"arith\.constant (?:dense<)?(-?\d+|true|false)>? : i\d+")
_AXES = {"x": 0, "y": 1, "z": 2}
_BITS = re.compile(r"\d+")

_BINARY: Mapping[str, Callable[[float, float], float]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": lambda a, b: float(math.trunc(a / b)),
    "arith.divui": lambda a, b: float(math.trunc(a / b)),
    "arith.ceildivsi": lambda a, b: float(math.ceil(a / b)),
    "arith.remsi": math.fmod,
    "arith.remui": math.fmod,
    "arith.minsi": min,
    "arith.minui": min,
    "arith.maxsi": max,
    "arith.maxui": max,
}


@dataclass(frozen=True)
class Access:
    """One load, store or atomic of the text.

    Attributes:
        argument: Position of the pointer or descriptor among the kernel's arguments that exist at run time; None if unknown.
        elements: Of the tile, masked ones included.
        width: Bytes of an element.
        trips: How often a program executes it.
        stores: Writes (a store or an atomic).
        masked: Some lanes may be off.
        in_unknown_loop: `trips` holds the caller's guess.
        loop: Number of the innermost loop around it in the text, 0 outside of any.
        entered: How often a program enters that loop.
    """

    argument: int | None
    elements: int
    width: int
    trips: float
    stores: bool
    masked: bool
    in_unknown_loop: bool
    loop: int = 0
    entered: float = 1.0

    @property
    def nbytes(self) -> float:
        """Bytes one program asks for."""
        return self.elements * self.width * self.trips


@dataclass(frozen=True)
class Product:
    """One matrix product of the text: sizes of its tile, bytes of an input element, how often a program executes it, and in which loop."""

    m: int
    n: int
    k: int
    width: int
    trips: float
    loop: int = 0

    @property
    def flops(self) -> float:
        """Operations of one program."""
        return 2.0 * self.m * self.n * self.k * self.trips


@dataclass
class BlockWork:
    """What one program does.

    Attributes:
        accesses, products: See `Access`, `Product`.
        static_elements, dynamic_elements: Tile elements all operations work on, as written and as executed; their quotient says
            how often the average instruction of the binary runs.
        memory_rounds: Loads that must wait for one another: one per trip of each loop that loads, one for the rest.
        reductions: Reductions and scans executed.
    """

    accesses: list[Access] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    static_elements: float = 0.0
    dynamic_elements: float = 0.0
    memory_rounds: float = 0.0
    reductions: float = 0.0

    @property
    def repetition(self) -> float:
        """How often the average instruction runs, at least 1."""
        return max(1.0, self.dynamic_elements / self.static_elements) if self.static_elements else 1.0


def count_work(ttir: str, scalars: Sequence[float | None], grid: Sequence[int], unknown_trips: float = 1.0) -> BlockWork:
    """Counts the public function of a module.

    Args:
        ttir: Module text without locations.
        scalars: Per run-time argument its value if it is a number, else None.
        grid: Programs per axis.
        unknown_trips: Trips of loops whose bounds are not known.
    """
    first, work, last = (_count_program(ttir, scalars, grid, unknown_trips, place) for place in (0.0, MIDDLE, 1.0))
    if first == work == last:
        return work
    return _mean([_count_program(ttir, scalars, grid, unknown_trips, place) for place in PLACES])


def _mean(works: Sequence[BlockWork]) -> BlockWork:
    """Of programs of one kernel, whose accesses and products are the same ones, executed more or less often."""

    def mean(values: Iterable[float]) -> float:
        return math.fsum(values) / len(works)

    return BlockWork(
        [replace(same[0], trips=mean(item.trips for item in same)) for same in zip(*(w.accesses for w in works), strict=True)],
        [replace(same[0], trips=mean(item.trips for item in same)) for same in zip(*(w.products for w in works), strict=True)],
        works[0].static_elements,
        mean(work.dynamic_elements for work in works),
        mean(work.memory_rounds for work in works),
        mean(work.reductions for work in works),
    )


def _count_program(
    ttir: str, scalars: Sequence[float | None], grid: Sequence[int], unknown_trips: float, place: float
) -> BlockWork:
    counter = _Counter(scalars, grid, unknown_trips, place)
    inside = False
    for line in ttir.splitlines():
        text = line.strip()
        if text.startswith("tt.func"):
            inside = text.startswith("tt.func public")
            if inside:
                counter.signature(text)
        elif inside:
            counter.line(text)
    return counter.work


@dataclass
class _Region:
    trips: float
    unknown: bool
    is_loop: bool
    number: int = 0
    entered: float = 1.0
    results: str = ""
    carried: list[str] = field(default_factory=list)
    loads: bool = False


class _Counter:
    def __init__(self, scalars: Sequence[float | None], grid: Sequence[int], unknown_trips: float, place: float) -> None:
        self.work = BlockWork()
        self._place = place
        self._scalars = scalars
        self._grid = grid
        self._unknown_trips = unknown_trips
        self._numbers: dict[str, float] = {}
        self._bases: dict[str, int] = {}
        self._regions = [_Region(1.0, False, False)]
        self._loops = 0

    def signature(self, text: str) -> None:
        names = _ARGUMENT.findall(text.partition("(")[2])
        for position, name in enumerate(names):
            self._bases[name] = position
            value = self._scalars[position] if position < len(self._scalars) else None
            if value is not None:
                self._numbers[name] = float(value)

    def line(self, text: str) -> None:
        if text.startswith("}"):
            self._close(text)
            return
        loop = _FOR.match(text)
        if loop:
            self._open_loop(loop)
            return
        if text.endswith("{") or text.endswith("({"):
            unknown = "scf.while" in text
            trips = self._regions[-1].trips * (self._unknown_trips if unknown else 1.0)
            outer = self._regions[-1]
            self._loops += unknown
            inner = (self._loops, outer.trips) if unknown else (outer.number, outer.entered)
            self._regions.append(_Region(trips, unknown or outer.unknown, unknown, *inner))
        assigned = _ASSIGNED.match(text)
        name, operation = assigned.groups() if assigned else ("", text)
        kind = operation.partition(" ")[0].strip('"').partition("(")[0].rstrip('"')
        self._scalar(name, kind, operation)
        self._base(name, kind, operation)
        self._count(kind, operation)

    def _open_loop(self, match: re.Match[str]) -> None:
        result, induction, low, high, step, carried, _ = match.groups()
        bounds = [self._number(item.strip(",")) for item in (low, high, step)]
        known = None not in bounds and bounds[2] != 0
        trips = self._unknown_trips
        if known:
            first, end, stride = (float(item or 0) for item in bounds)
            trips = min(MAX_TRIPS, max(0.0, math.ceil((end - first) / stride)))
            self._numbers[induction] = first + stride * (trips - 1) / 2
        outer = self._regions[-1]
        self._loops += 1
        region = _Region(outer.trips * trips, outer.unknown or not known, True, self._loops, outer.trips, result or "")
        for pair in (carried or "").split(", "):
            name, _, start = pair.partition(" = ")
            if start in self._bases:
                self._bases[name] = self._bases[start]
            region.carried.append(start)
        self._regions.append(region)

    def _close(self, text: str) -> None:
        if len(self._regions) > 1:
            region = self._regions.pop()
            for index, start in enumerate(region.carried):
                if region.results and start in self._bases:
                    self._bases[f"{region.results}#{index}"] = self._bases[start]
                    if len(region.carried) == 1:
                        self._bases[region.results] = self._bases[start]
            if region.loads:
                self.work.memory_rounds += region.trips
        if text.endswith("{"):  # } else {, } do {
            outer = self._regions[-1]
            self._regions.append(_Region(outer.trips, outer.unknown, False, outer.number, outer.entered))

    def _number(self, name: str) -> float | None:
        return self._numbers.get(name)

    def _scalar(self, name: str, kind: str, operation: str) -> None:
        if not name or "tensor<" in operation:
            return
        constant = _CONSTANT.match(operation)
        operands = [self._number(item) for item in re.findall(r"%[\w#]+", operation.partition(" : ")[0])]
        if constant:
            self._numbers[name] = {"true": 1.0, "false": 0.0}.get(constant.group(1)) or float(_digits(constant.group(1)))
        elif kind in ("tt.get_program_id", "tt.get_num_programs"):
            axis = _AXES.get(operation.split()[1], 0)
            size = self._grid[axis] if axis < len(self._grid) else 1
            self._numbers[name] = float(size) if kind == "tt.get_num_programs" else float(int((size - 1) * self._place))
        elif kind in _BINARY and len(operands) == 2:
            left, right = operands
            if left is not None and right is not None and not (right == 0 and ("div" in kind or "rem" in kind)):
                self._numbers[name] = _BINARY[kind](left, right)
        elif kind in ("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast") and operands[:1] != [None] and operands:
            self._numbers[name] = float(operands[0] or 0.0)

    def _base(self, name: str, kind: str, operation: str) -> None:
        if name and kind in ("tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.bitcast", "tt.make_tensor_ptr",
                             "tt.make_tensor_descriptor", "tt.advance", "tt.reshape", "tt.trans", "arith.select"):  # fmt: skip
            for operand in re.findall(r"%[\w#]+", operation):
                if operand in self._bases:
                    self._bases[name] = self._bases[operand]
                    break

    def _count(self, kind: str, operation: str) -> None:
        region = self._regions[-1]
        sizes = [(_elements(dims), item) for dims, item in _TENSOR.findall(operation.rpartition(" : ")[2])]
        largest = max((elements for elements, _ in sizes), default=0)
        if kind in ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas") or kind.startswith(
            ("tt.descriptor_", "tt.experimental_d")
        ):
            self._access(kind, operation, sizes)
        elif kind in ("tt.dot", "tt.dot_scaled"):
            self._product(operation)
        elif kind in ("tt.reduce", "tt.scan"):
            self.work.reductions += region.trips
        if largest > 1 and kind.partition(".")[0] in ("arith", "math", "tt") and kind not in ("arith.constant", "tt.splat"):
            self.work.static_elements += largest
            self.work.dynamic_elements += largest * region.trips

    def _access(self, kind: str, operation: str, sizes: list[tuple[int, str]]) -> None:
        region = self._regions[-1]
        names = re.findall(r"%[\w#]+", operation.partition(" : ")[0])
        types = operation.rpartition(" : ")[2]
        elements = max((count for count, _ in sizes), default=1)
        pointee = re.search(r"ptr<([a-zA-Z0-9]+)", types)
        width = _width(pointee.group(1) if pointee else next((item for _, item in sizes), "f32"))
        stores = kind not in ("tt.load", "tt.descriptor_load", "tt.descriptor_gather")
        masked = len(names) > (2 if kind == "tt.store" else 1)
        argument = next((self._bases[name] for name in names[:1] if name in self._bases), None)
        self.work.accesses.append(
            Access(argument, elements, width, region.trips, stores, masked, region.unknown, region.number, region.entered)
        )
        if not stores:
            loop = next((item for item in reversed(self._regions) if item.is_loop), None)
            if loop is not None:
                loop.loads = True
            elif not self._regions[0].loads:
                self._regions[0].loads = True
                self.work.memory_rounds += 1

    def _product(self, operation: str) -> None:
        shapes = [
            ([int(size) for size in dims.split("x") if size], item)
            for dims, item in _TENSOR.findall(operation.rpartition(" : ")[2])
        ]
        if len(shapes) < 2 or min(len(shapes[0][0]), len(shapes[1][0])) < 2:
            return
        (left, item), (right, _) = shapes[0], shapes[1]
        batch = math.prod(left[:-2])
        region = self._regions[-1]
        self.work.products.append(Product(left[-2] * batch, right[-1], left[-1], _width(item), region.trips, region.number))


def _digits(text: str) -> str:
    return text if text.lstrip("-").isdigit() else "0"


def _elements(dims: str) -> int:
    return math.prod(int(size) for size in dims.split("x") if size)


def _width(element: str) -> int:
    bits = _BITS.search(element.removeprefix("!tt.ptr<"))
    return max(1, min(64, int(bits.group()) if bits else 32) // 8)
