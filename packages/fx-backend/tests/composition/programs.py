"""Random programs: compositions of views, moves, pointwise operators, reductions and writes.

A program is text, made step by step while it runs in eager mode; a step that eager refuses, or
whose result is unsuitable, is dropped. Values are small dyadic numbers, so that most operators are
exact in every dtype and whatever order they are computed in; what rounds is marked inexact and not
given to operators that jump (comparisons, rounding, conversions to integers).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from composition import arithmetic, edges, families, images

LOW = (torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (torch.float32,) * 8 + (torch.float64, *LOW, *INTEGERS, torch.bool)
MOST_DIMS, LARGEST = 5, 3e4
COMMON = (2, 3, 4, 4, 5, 6, 6, 7, 8)
WIDE = (2, 3, 7, 15, 16, 17, 31, 33, 40, 64, 67, 100, 130)  # around and above what a vector holds


@dataclass(frozen=True)
class Input:
    """How an argument is made; ``resized`` makes the same one with other sizes."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str = "contiguous"
    special: bool = False
    seed: int = 0

    def make(self, resize: Callable[[int], int] = lambda n: n) -> torch.Tensor:
        """A fresh tensor of this description."""
        shape = tuple(map(resize, self.shape))
        if self.layout == "transposed" and len(shape) > 1:
            return self._fill(shape[::-1]).permute(*range(len(shape) - 1, -1, -1))
        if self.layout == "stepped" and shape:
            return self._fill((*shape[:-1], shape[-1] * 2))[..., ::2]
        if self.layout == "offset" and shape:
            return self._fill((shape[0] + 2, *shape[1:]))[1:-1]
        if self.layout == "expanded" and len(shape) > 1:
            return self._fill((1, *shape[1:])).expand(shape)
        return self._fill(shape)

    def _fill(self, shape: tuple[int, ...]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        quarters = torch.randint(-8, 9, shape, generator=generator, device="cpu")
        place = torch.get_default_device()
        if self.dtype is torch.bool:
            return (quarters > 0).to(place)
        if not self.dtype.is_floating_point:
            whole = quarters.abs() if self.dtype is torch.uint8 else quarters
            return whole.to(place, self.dtype)
        x = quarters.to(self.dtype) / 4
        if self.special and x.numel():
            picks = torch.randint(0, 12, shape, generator=generator, device="cpu")
            for number, value in enumerate((-0.0, float("inf"), float("nan"))):
                x[picks == number] = value
        return x.to(place)


@dataclass(frozen=True)
class Step:
    """``target = text``, or only ``text``; ``reads`` are the values in it."""

    target: str | None
    text: str
    reads: tuple[str, ...]

    def line(self) -> str:
        return f"    {self.text}" if self.target is None else f"    {self.target} = {self.text}"


@dataclass(frozen=True)
class Program:
    """Inputs, steps and the names of what is returned."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    rounds: bool = False  # some value in it is inexact
    rough: bool = False  # some value in it was of low precision

    def source(self) -> str:
        names = ", ".join(f"x{i}" for i in range(len(self.inputs)))
        lines = [f"def fn({names}):", *(step.line() for step in self.steps)]
        lines.append(f"    return ({', '.join(self.outputs)},)")
        return "\n".join(lines) + "\n"

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        names: dict[str, object] = {"torch": torch, "F": F}
        exec(compile(self.source(), "<composition>", "exec"), names)
        return names["fn"]  # type: ignore[return-value]


@dataclass
class Draft:
    """A program in the making, with the value of each name."""

    rng: random.Random
    symbolic: bool
    large: bool = False
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    inexact: set[str] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    floats = (torch.float32, torch.float64)

    def pick(self, want: Callable[[torch.Tensor], bool] = lambda t: True) -> str | None:
        """The name of a value, late ones preferred."""
        names = [n for n, t in self.values.items() if want(t)]
        if not names:
            return None
        late = names[-4:]
        return self.rng.choice(late if self.rng.random() < 0.75 else names)

    def fits(self, t: torch.Tensor) -> bool:
        """Whether a value is of a size that is quick to check."""
        small = t.numel() <= (30_000 if self.large else 500) and t.dim() <= MOST_DIMS
        return small and not t.is_complex() and _largest(t) < LARGEST

    def exact(self, name: str) -> bool:
        return name not in self.inexact and bool(torch.isfinite(self.values[name]).all())


Maker = Callable[[Draft, str], "str | None"]
VIEWS: list[Maker] = []
MOVES: list[Maker] = []
POINTWISE: list[Maker] = []
REDUCTIONS: list[Maker] = []
WRITES: list[Maker] = []
ROUNDING: set[Maker] = set()
JUMPS: set[Maker] = set()


def _kind(
    table: list[Maker], *, rounds: bool = False, jumps: bool = False
) -> Callable[[Maker], Maker]:
    """Enter a maker; ``rounds``: its results are inexact, ``jumps``: it wants exact operands."""

    def enter(make: Maker) -> Maker:
        table.append(make)
        if rounds:
            ROUNDING.add(make)
        if jumps:
            JUMPS.add(make)
        return make

    return enter


def _dim(d: Draft, x: str) -> int:
    rank = d.values[x].dim()
    return d.rng.randrange(-rank, rank) if rank else 0


def _size(d: Draft, x: str, dim: int) -> str:
    """A size as text: what changes with the input in a symbolic program."""
    if d.symbolic and d.rng.random() < 0.8:
        return f"{x}.shape[{dim}]"
    return str(d.values[x].shape[dim])


def _ranked(x: str, d: Draft, low: int = 1, high: int = 9) -> bool:
    return low <= d.values[x].dim() <= high


# ------------------------------------------------------------------------------------ views


@_kind(VIEWS)
def _transpose(d: Draft, x: str) -> str | None:
    if not _ranked(x, d, 2):
        return None
    word = d.rng.choice(("transpose", "swapaxes", "movedim"))
    return f"{x}.{word}({_dim(d, x)}, {_dim(d, x)})"


@_kind(VIEWS)
def _permute(d: Draft, x: str) -> str | None:
    order = list(range(d.values[x].dim()))
    d.rng.shuffle(order)
    return f"{x}.permute({order})" if order else None


@_kind(VIEWS)
def _reshape(d: Draft, x: str) -> str | None:
    shape = d.values[x].shape
    word = d.rng.choice(("reshape", "reshape", "view"))
    if d.rng.random() < 0.3 or not shape:
        return f"{x}.{word}(-1)"
    if d.rng.random() < 0.5 and len(shape) > 1:
        at = d.rng.randrange(len(shape) - 1)
        return f"{x}.flatten({at}, {at + 1})"
    if d.symbolic or d.rng.random() < 0.5:
        at = d.rng.randrange(len(shape))
        by = d.rng.choice((2, 3))
        pair = d.rng.choice((f"({by}, -1)", f"(-1, {by})"))
        return f"{x}.unflatten({at}, {pair})" if shape[at] % by == 0 else None
    total = d.values[x].numel()
    sizes: list[int] = []
    while total > 1 and len(sizes) < 4:
        size = d.rng.choice([n for n in range(1, total + 1) if total % n == 0])
        sizes.append(size)
        total //= size
    if sizes and d.rng.random() < 0.4:
        return f"{x}.{word}({[*sizes, -1]})"
    return f"{x}.{word}({[*sizes, total]})"


@_kind(VIEWS)
def _expand(d: Draft, x: str) -> str | None:
    shape = d.values[x].shape
    if 1 in shape and d.rng.random() < 0.7:
        sizes = [d.rng.choice((2, 3)) if n == 1 and d.rng.random() < 0.7 else -1 for n in shape]
        return f"{x}.expand({sizes})"
    at = d.rng.randrange(len(shape) + 1)
    sizes = [-1] * len(shape)
    sizes.insert(at, d.rng.choice((2, 3)))
    return f"{x}.unsqueeze({at}).expand({sizes})"


@_kind(VIEWS)
def _slice(d: Draft, x: str) -> str | None:
    if not _ranked(x, d):
        return None
    parts = []
    for size in d.values[x].shape:
        if d.rng.random() < 0.5:
            parts.append(":")
            continue
        bound = lambda: d.rng.choice(("", "", str(d.rng.randint(-size - 1, size + 1))))
        step = d.rng.choice(("", "", "", ":2", ":3"))
        parts.append(f"{bound()}:{bound()}{step}")
    return f"{x}[{', '.join(parts)}]"


@_kind(VIEWS)
def _select(d: Draft, x: str) -> str | None:
    if not _ranked(x, d):
        return None
    dim = _dim(d, x)
    size = d.values[x].shape[dim]
    return f"{x}.select({dim}, {d.rng.randrange(-size, size)})" if size else None


@_kind(VIEWS)
def _narrow(d: Draft, x: str) -> str | None:
    if not _ranked(x, d):
        return None
    dim = _dim(d, x)
    size = d.values[x].shape[dim]
    start = d.rng.randint(0, size)
    if d.symbolic and d.rng.random() < 0.5:
        return f"{x}.narrow({dim}, {start}, {x}.shape[{dim}] - {start})"
    return f"{x}.narrow({dim}, {start}, {d.rng.randint(0, size - start)})"


@_kind(VIEWS)
def _unfold(d: Draft, x: str) -> str | None:
    if not _ranked(x, d):
        return None
    dim = _dim(d, x)
    size = d.values[x].shape[dim]
    if not size:
        return None
    return f"{x}.unfold({dim}, {d.rng.randint(1, min(size, 3))}, {d.rng.randint(1, 3)})"


@_kind(VIEWS)
def _diagonal(d: Draft, x: str) -> str | None:
    if not _ranked(x, d, 2):
        return None
    a, b = d.rng.sample(range(d.values[x].dim()), 2)
    return f"{x}.diagonal({d.rng.randint(-2, 2)}, {a}, {b})"


@_kind(VIEWS)
def _squeeze(d: Draft, x: str) -> str | None:
    if d.rng.random() < 0.5:
        return f"{x}.unsqueeze({d.rng.randint(-d.values[x].dim() - 1, d.values[x].dim())})"
    return f"{x}.squeeze({d.rng.choice(('', _dim(d, x) if _ranked(x, d) else ''))})"


@_kind(VIEWS)
def _pieces(d: Draft, x: str) -> str | None:
    if not _ranked(x, d):
        return None
    dim = _dim(d, x)
    count = d.rng.randint(1, 3)
    words = (f"split({count}, {dim})", f"chunk({count}, {dim})", f"unbind({dim})")
    word = d.rng.choice((*words, f"tensor_split({count}, {dim})"))
    return f"{x}.{word}[{d.rng.choice((0, 0, -1, 1))}]"


@_kind(VIEWS)
def _as_strided(d: Draft, x: str) -> str | None:
    t = d.values[x]
    if d.symbolic or t.numel() < 2 or not t.is_contiguous() or t.storage_offset():
        return None
    rows = d.rng.randint(1, min(3, t.numel()))
    step = d.rng.randint(1, 2)
    offset = d.rng.randint(0, 1)
    columns = (t.numel() - 2) // (rows * step)  # no two elements share memory
    if columns < 1:
        return None
    return f"{x}.as_strided(({rows}, {columns}), ({step}, {rows * step}), {offset})"


# ------------------------------------------------------------------------------------ moves


@_kind(MOVES)
def _flip(d: Draft, x: str) -> str | None:
    rank = d.values[x].dim()
    if not rank:
        return None
    return f"{x}.flip({d.rng.sample(range(-rank, 0), d.rng.randint(1, min(2, rank)))})"


@_kind(MOVES)
def _places(d: Draft, x: str) -> str | None:
    """Places along one dimension, which are the same along all others."""
    if not _ranked(x, d):
        return None
    sizes = [1] * d.values[x].dim()
    dim = d.rng.randrange(len(sizes))
    sizes[dim] = -1
    number = d.rng.choice(("", " % 3", " - 4", " * (torch.zeros(()) - 1)"))
    return f"(torch.arange({_size(d, x, dim)}){number}).view({sizes}).expand({x}.shape)"


@_kind(MOVES)
def _roll(d: Draft, x: str) -> str | None:
    if d.rng.random() < 0.2:
        return f"{x}.roll({d.rng.randint(-3, 3)})"
    if not _ranked(x, d):
        return None
    dims = d.rng.sample(range(d.values[x].dim()), d.rng.randint(1, min(2, d.values[x].dim())))
    return f"{x}.roll({[d.rng.randint(-7, 7) for _ in dims]}, {dims})"


def _partner(d: Draft, x: str, dim: int | None) -> str:
    """Another value that is ``x``'s shape but for ``dim``."""
    shape = list(d.values[x].shape)
    if dim is not None:
        shape[dim] = -1

    def fits(t: torch.Tensor) -> bool:
        other = list(t.shape)
        if dim is not None and len(other) == len(shape):
            other[dim] = -1
        return other == shape

    return d.pick(fits) or x


@_kind(MOVES)
def _cat(d: Draft, x: str) -> str | None:
    if d.rng.random() < 0.4:
        return f"torch.stack([{x}, {_partner(d, x, None)}], {_dim(d, x)})"
    if not _ranked(x, d):
        return None
    dim = _dim(d, x)
    pieces = [x, _partner(d, x, dim), _partner(d, x, dim)][: d.rng.randint(1, 3)]
    return f"torch.cat([{', '.join(pieces)}], {dim})"


@_kind(MOVES)
def _pad(d: Draft, x: str) -> str | None:
    t = d.values[x]
    mode = d.rng.choice(("constant", "constant", "reflect", "replicate", "circular"))
    if mode == "constant":
        if not t.dim():
            return None
        pads = [d.rng.randint(-1, 3) for _ in range(2 * d.rng.randint(1, min(2, t.dim())))]
        return f"F.pad({x}, {pads}, value={d.rng.choice((0, 1, 2))})"
    if t.dim() not in (2, 3, 4) or not t.dtype.is_floating_point:
        return None
    dims = d.rng.choice({2: (1,), 3: (1, 2), 4: (2,)}[t.dim()])
    pads = [d.rng.randint(0, 2) for _ in range(2 * dims)]
    return f"F.pad({x}, {pads}, mode={mode!r})"


@_kind(MOVES)
def _repeat(d: Draft, x: str) -> str | None:
    rank = d.values[x].dim()
    kind = d.rng.randrange(3)
    if kind == 0:
        times = [d.rng.randint(1, 3) for _ in range(rank + d.rng.randint(0, 1))]
        return f"{x}.repeat({times})"
    if kind == 1:
        times = [d.rng.randint(1, 2) for _ in range(max(rank - d.rng.randint(0, 1), 1))]
        return f"{x}.tile({times})"
    where = f", {_dim(d, x)}" if rank and d.rng.random() < 0.7 else ""
    return f"{x}.repeat_interleave({d.rng.randint(1, 3)}{where})"


def _positions(d: Draft, size: int, count: int) -> str:
    return f"torch.tensor({[d.rng.randrange(-size, size) for _ in range(count)]})"


def _positions_like(d: Draft, t: torch.Tensor, size: int) -> str:
    if d.large:
        return (
            f"(torch.arange({t.numel()}) * {d.rng.choice((5, 7, 11))} % {size}).view({[*t.shape]})"
        )
    generator = torch.Generator().manual_seed(len(d.steps))
    places = torch.randint(0, size, t.shape, generator=generator, device="cpu")
    return f"torch.tensor({places.tolist()})"


def _computed_positions(d: Draft, x: str, size: int) -> str:
    """Positions that the values of ``x`` give, which have to be exact."""
    last = size - 1
    choices = (f"({x} > 0).long()", f"torch.where({x} > 1, {last}, 0)",
               f"({x}.ne(0) & ({x} < 2)).long()", f"({x} < 1).long() * {last}")  # fmt: skip
    return d.rng.choice(choices) if size > 1 else f"torch.zeros_like({x}, dtype=torch.long)"


@_kind(MOVES)
def _index(d: Draft, x: str) -> str | None:
    t = d.values[x]
    if not t.dim() or 0 in t.shape:
        return None
    dim = d.rng.randrange(t.dim())
    size = t.shape[dim]
    count = d.rng.randint(1, 4)
    some = [d.rng.randrange(size) for _ in range(count)]
    kind = d.rng.randrange(6)
    if kind == 0:
        return f"{x}.index_select({dim}, torch.tensor({some}))"
    if kind == 1:
        return f"{x}[{':, ' * dim}{_positions(d, size, count)}]"
    if kind == 2 and d.exact(x) and not t.is_complex() and d.rng.random() < 0.5:
        found = _computed_positions(d, x, size)
        return d.rng.choice((f"{x}.gather({dim}, {found})", f"{x}.reshape(-1)[{found}]"))
    if kind == 2:
        return f"{x}.gather({dim}, {_positions_like(d, t, size)})"
    if kind == 3 and t.dim() > 1:
        both = [_positions(d, n, count) for n in t.shape[:2]]
        return f"{x}[{', '.join(both)}]"
    if kind == 4:
        return f"F.embedding(torch.tensor({some}), {x})" if t.dim() == 2 and dim == 0 else None
    if not d.exact(x):
        return None
    return f"torch.take_along_dim({x}, {x}.argsort({dim}, stable=True), {dim})"


@_kind(MOVES)
def _scatter(d: Draft, x: str) -> str | None:
    t = d.values[x]
    if not t.dim() or 0 in t.shape:
        return None
    dim = d.rng.randrange(t.dim())
    size = t.shape[dim]
    some = [d.rng.randrange(size) for _ in range(2)]
    kind = d.rng.randrange(12)
    if kind == 0:
        twice = f"{x}.narrow({dim}, 0, 1).repeat_interleave(2, {dim})"
        return f"{x}.index_add({dim}, torch.tensor({some}), {twice})"
    if kind == 1:
        return f"{x}.index_fill({dim}, torch.tensor({some}), 1)"
    if kind == 2:
        return f"{x}.select_scatter({x}.select({dim}, {some[0]}), {dim}, {some[1]})"
    if kind == 3:
        return f"{x}.slice_scatter({x}[{':, ' * dim}::2] * 2, {dim}, None, None, 2)"
    if kind == 4:
        return f"{x}.scatter_add({dim}, {_positions_like(d, t, size)}, {x})"
    if kind == 5:
        return f"{x}.index_put([torch.tensor({[d.rng.randrange(t.shape[0])]})], {x}[0])"
    if kind == 6:
        diagonal = t.dim() > 1 and t.dtype is not torch.bool
        return f"{x}.diagonal_scatter({x}.diagonal() + 1)" if diagonal else None
    # Points that meet: a narrower index with positions that occur again, and other sources.
    length = d.rng.randint(1, 3)
    part = t.narrow(dim, 0, min(length, size))
    where, source = _positions_like(d, part, size), f"{x}.narrow({dim}, 0, {part.shape[dim]})"
    if kind == 7:
        reduce = d.rng.choice(("sum", "amax", "amin", "prod", "mean"))
        if reduce in ("prod", "mean") and not d.exact(x):
            return None
        kept = d.rng.choice((True, False))
        return f"{x}.scatter_reduce({dim}, {where}, {source} * 2, {reduce!r}, include_self={kept})"
    if kind == 8:
        written = d.rng.choice(("2", f"{source} + {source}"))
        return f"{x}.scatter({dim}, {where}, {written})"
    rows = f"torch.tensor({[d.rng.randrange(size) for _ in range(length)]})"
    if kind == 9:
        return f"{x}.index_copy({dim}, {rows}, {x}.index_select({dim}, {rows}) * 2)"
    if kind == 10:
        return f"{x}.index_add({dim}, {rows}, {x}.index_select({dim}, {rows}), alpha=2)"
    signed = _positions(d, size, length)
    first = f"{x}.transpose(0, {dim})"
    return f"{first}.index_put([{signed}], {first}[{signed}] + 1, True)"


@_kind(MOVES)
def _triangle(d: Draft, x: str) -> str | None:
    if not _ranked(x, d, 2):
        return None
    if d.rng.random() < 0.4:
        a, b = d.rng.sample(range(d.values[x].dim()), 2)
        return f"torch.rot90({x}, {d.rng.randint(-1, 3)}, [{a}, {b}])"
    return f"{x}.{d.rng.choice(('tril', 'triu'))}({d.rng.randint(-2, 2)})"


@_kind(MOVES)
def _copy(d: Draft, x: str) -> str | None:
    words = ["contiguous()", "clone()"] + ["T.contiguous()"] * _ranked(x, d, 2, 2)
    return f"{x}.{d.rng.choice(words)}"


# -------------------------------------------------------------------------------- pointwise


@_kind(POINTWISE)
def _unary(d: Draft, x: str) -> str | None:
    dtype = d.values[x].dtype
    if dtype is torch.bool:
        return d.rng.choice((f"~{x}", f"{x}.logical_not()", f"{x} + 1"))
    words = ["neg()", "abs()", "relu()", "square()", "clamp(-1, 2)", "clamp_min(0)", "sign()"]
    return f"{x}.{d.rng.choice(words)}"


@_kind(POINTWISE)
def _binary(d: Draft, x: str) -> str | None:
    y = d.pick(lambda t: _broadcasts(d.values[x], t)) or x
    word = d.rng.choice(("add", "sub", "mul", "maximum", "minimum", "add"))
    if torch.bool in (d.values[x].dtype, d.values[y].dtype):
        word = d.rng.choice(("add", "mul", "maximum"))
    return f"torch.{word}({x}, {y})"


def _broadcasts(a: torch.Tensor, b: torch.Tensor) -> bool:
    pairs = zip(reversed(a.shape), reversed(b.shape))
    return all(m == n or m == 1 or n == 1 for m, n in pairs)


@_kind(POINTWISE)
def _number(d: Draft, x: str) -> str | None:
    number = d.rng.choice(("1", "2", "0.5", "-1", "True", "3"))
    return f"{x} {d.rng.choice('+*-')} {number}"


@_kind(POINTWISE, jumps=True)
def _compare(d: Draft, x: str) -> str | None:
    y = d.pick(lambda t: _broadcasts(d.values[x], t)) or x
    if not d.exact(y):
        y = "0.5"
    word = d.rng.choice(("<", "<=", ">", ">=", "==", "!="))
    if d.rng.random() < 0.4:
        return f"torch.where({x} {word} {y}, {x}, {d.rng.choice((x, '0', '1'))})"
    return f"{x} {word} {y}"


@_kind(POINTWISE, jumps=True)
def _integral(d: Draft, x: str) -> str | None:
    words = [
        "floor()",
        "ceil()",
        "trunc()",
        "round()",
        "to(torch.int32)",
        "to(torch.int64)",
        "bool()",
        "to(torch.int8)",
        "remainder(3)",
        "fmod(2)",
        "floor_divide(2)",
    ]
    return f"{x}.{d.rng.choice(words)}"


@_kind(POINTWISE)
def _convert(d: Draft, x: str) -> str | None:
    return f"{x}.to(torch.{d.rng.choice(('float32', 'float64', 'bfloat16', 'float16', 'float32'))})"


@_kind(POINTWISE)
def _bits(d: Draft, x: str) -> str | None:
    if d.values[x].dtype.is_floating_point:
        return f"{x}.masked_fill({x} > 1, 2)" if d.exact(x) else None
    y = d.pick(lambda t: t.dtype == d.values[x].dtype and _broadcasts(d.values[x], t)) or x
    return f"{x} {d.rng.choice(('&', '|', '^'))} {y}"


@_kind(POINTWISE, rounds=True)
def _smooth(d: Draft, x: str) -> str | None:
    if d.rng.random() < 0.15 and bool((d.values[x] != 0).all()):  # 1 / -0.0 jumps
        return f"{x}.reciprocal()"
    words = [
        "sigmoid()",
        "tanh()",
        "exp()",
        "sin()",
        "div(3)",
        "abs().sqrt()",
        "abs().log1p()",
        "atan()",
        "erf()",
    ]
    return f"{x}.{d.rng.choice(words)}"


# ------------------------------------------------------------------------------- reductions


def _where(d: Draft, x: str, several: bool = True) -> str:
    rank = d.values[x].dim()
    keep = d.rng.choice(("", "", ", keepdim=True"))
    if several and rank > 1 and d.rng.random() < 0.3:
        return f"{d.rng.sample(range(rank), 2)}{keep}"
    return f"{_dim(d, x)}{keep}"


@_kind(REDUCTIONS)
def _sum(d: Draft, x: str) -> str | None:
    if d.rng.random() < 0.15:
        return f"{x}.sum()"
    return f"{x}.{d.rng.choice(('sum', 'amax', 'amin'))}({_where(d, x)})"


@_kind(REDUCTIONS, rounds=True)
def _mean(d: Draft, x: str) -> str | None:
    t = d.values[x]
    if not t.dtype.is_floating_point:
        return f"{x}.sum({_where(d, x)})"
    word = d.rng.choice(("mean", "var", "std", "logsumexp"))
    return f"{x}.{word}({_where(d, x)})"


@_kind(REDUCTIONS, rounds=True)
def _soft(d: Draft, x: str) -> str | None:
    if not d.values[x].dtype.is_floating_point or not _ranked(x, d):
        return None
    order = d.rng.choice(("1", "2", "0", "float('inf')"))
    words = [f"{x}.{word}({_dim(d, x)})" for word in ("softmax", "log_softmax")]
    norms = [f"torch.linalg.vector_norm({x}, {order}, {_dim(d, x)})", f"{x}.norm()"]
    return d.rng.choice(words + norms)


@_kind(REDUCTIONS)
def _scan(d: Draft, x: str) -> str | None:
    return f"{x}.cumsum({_dim(d, x)})"


@_kind(REDUCTIONS, jumps=True)
def _extreme_so_far(d: Draft, x: str) -> str | None:
    word = d.rng.choice(("cummax", "cummin"))
    return f"{x}.{word}({_dim(d, x)})[{d.rng.choice((0, 1))}]"


@_kind(REDUCTIONS, jumps=True)
def _truth(d: Draft, x: str) -> str | None:
    word = d.rng.choice(("any", "all", "argmax", "argmin", "count_nonzero", "any"))
    if word == "count_nonzero":
        return f"{x}.count_nonzero({_dim(d, x)})"
    return f"{x}.{word}({_where(d, x, several=False)})"


@_kind(REDUCTIONS, jumps=True)
def _extreme(d: Draft, x: str) -> str | None:
    word = d.rng.choice(("max", "min"))
    return f"{x}.{word}({_where(d, x, several=False)})[{d.rng.choice((0, 0, 1))}]"


@_kind(REDUCTIONS, rounds=True)
def _product(d: Draft, x: str) -> str | None:
    if d.values[x].numel() > 60 or d.rng.random() < 0.3:
        return f"{x}.{d.rng.choice(('cumprod', 'logcumsumexp'))}({_dim(d, x)})"
    return f"{x}.prod({_where(d, x, several=False)})"


# ------------------------------------------------------------------------------------ writes


@_kind(WRITES)
def _update(d: Draft, x: str) -> str | None:
    t = d.values[x]
    word = d.rng.choice(
        (
            "add_(1)",
            "mul_(2)",
            "zero_()",
            "fill_(1)",
            "neg_()",
            "clamp_(-1, 1)",
            "relu_()",
            "sub_(1)",
            "copy_",
            "add_",
            "mul_",
            "masked_fill_",
        )
    )
    if word == "masked_fill_":
        return f"{x}.masked_fill_({x} > 0, 3)" if d.exact(x) else None
    if word.endswith(")"):
        return f"{x}.{word}"
    y = d.pick(lambda u: _broadcasts(t, u))
    return f"{x}.{word}({y})" if y else None


@_kind(WRITES)
def _update_part(d: Draft, x: str) -> str | None:
    made = d.rng.choice((_slice, _select, _transpose, _diagonal, _narrow, _pieces))(d, x)
    word = d.rng.choice(("add_(1)", "mul_(2)", "zero_()", "fill_(2)", "neg_()"))
    return f"{made}.{word}" if made else None


@_kind(WRITES)
def _put(d: Draft, x: str) -> str | None:
    t = d.values[x]
    if not t.dim() or 0 in t.shape:
        return None
    spots = d.rng.sample(range(t.shape[0]), min(2, t.shape[0]))
    if d.exact(x) and d.rng.random() < 0.2:
        mask = d.rng.choice((f"[{x} > 0]", f"[{x}.select(-1, 0) > 0]"))
        return f"{x}.index_put_({mask}, {x}.new_full((), 3), {d.rng.random() < 0.3})"
    words = (
        "index_put_([torch.tensor({0})], {1}[{0}] + {1}[0])",
        "index_fill_(0, torch.tensor({0}), 1)",
        "index_add_(0, torch.tensor({0}), {1}[{0}])",
        "index_copy_(0, torch.tensor({0}), {1}[{0}] * 2)",
    )
    word = d.rng.choice(words)
    return f"{x}." + word.format(spots, x)


@_kind(WRITES)
def _out(d: Draft, x: str) -> str | None:
    t = d.values[x]
    y = d.pick(lambda u: u.shape == t.shape and u.dtype == t.dtype)
    return f"torch.{d.rng.choice(('add', 'mul', 'maximum'))}({y}, {y}, out={x})" if y else None


_kind(POINTWISE, jumps=True)(arithmetic.whole)
_kind(POINTWISE)(arithmetic.promoted)
_kind(POINTWISE)(arithmetic.bounded)
_kind(MOVES, jumps=True)(arithmetic.ordered)
_kind(MOVES)(arithmetic.gathered_windows)
_kind(MOVES)(images.pool)
_kind(MOVES, rounds=True)(images.resample)
_kind(MOVES)(images.patches)
_kind(MOVES, rounds=True)(images.sums)
_kind(MOVES, rounds=True)(images.rows)
_kind(REDUCTIONS, rounds=True)(images.loss)
_kind(REDUCTIONS, rounds=True)(images.odds)
_kind(REDUCTIONS, rounds=True)(families.product)
_kind(MOVES, rounds=True)(families.norm)
_kind(POINTWISE, rounds=True)(families.activation)
_kind(MOVES, jumps=True)(families.chosen)
_kind(MOVES)(families.rearranged)
_kind(POINTWISE, rounds=True)(families.complex_part)
_kind(MOVES, rounds=True)(families.convolved)
_kind(WRITES, rounds=True)(families.written_part)
_kind(POINTWISE, jumps=True)(edges.quotient)
_kind(POINTWISE, jumps=True)(edges.choice)
_kind(POINTWISE, rounds=True)(edges.mixed)
_kind(REDUCTIONS, rounds=True)(edges.summed)
_kind(MOVES)(edges.listed)
_kind(MOVES, rounds=True)(edges.unpooled)
_kind(MOVES, jumps=True)(edges.looked_up)
_kind(WRITES, jumps=True)(edges.under_mask)
_kind(WRITES)(edges.through_views)
KINDS: list[tuple[list[Maker], float]] = [
    (VIEWS, 0.34), (MOVES, 0.24), (POINTWISE, 0.22), (REDUCTIONS, 0.10), (WRITES, 0.10),
]  # fmt: skip


def _shapes(rng: random.Random, large: bool) -> Iterator[tuple[int, ...]]:
    while True:
        rank = rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
        sizes = [rng.choice(WIDE if large else COMMON) for _ in range(rank)]
        if rank and rng.random() < 0.15:
            sizes[rng.randrange(rank)] = 1
        if rank and rng.random() < 0.04:
            sizes[rng.randrange(rank)] = 0
        if torch.Size(sizes).numel() <= (10_000 if large else 200):
            yield tuple(sizes)


def _inputs(rng: random.Random, large: bool) -> list[Input]:
    shapes = _shapes(rng, large)
    made: list[Input] = []
    for number in range(rng.choice((1, 1, 2, 2, 3))):
        shape = made[0].shape if made and rng.random() < 0.5 else next(shapes)
        dtype = rng.choice(DTYPES)
        layout = rng.choice(("contiguous",) * 4 + ("transposed", "stepped", "offset", "expanded"))
        seed = rng.randrange(1 << 16) + number
        made.append(Input(shape, dtype, layout, rng.random() < 0.2, seed))
    return made


def generate(seed: int, *, symbolic: bool = False, large: bool = False, length: int = 6) -> Program:
    """Program number ``seed``; a ``large`` one fills vectors and threads."""
    rng = random.Random(f"{seed} {symbolic}{' large' * large}")
    inputs = _inputs(rng, large)
    draft = Draft(rng, symbolic, large)
    for number, spec in enumerate(inputs):
        draft.values[f"x{number}"] = spec.make()
    wanted = rng.randint(2, length)
    for _ in range(wanted * 6):
        if len(draft.steps) >= wanted:
            break
        _try_step(draft)
    made = [s.target for s in draft.steps if s.target is not None]
    outputs = made[-rng.randint(1, 3) :] or ["x0"]
    if made and rng.random() < 0.5:
        outputs.append(_also(draft, rng.choice(made)))
    rough = any(t.dtype in LOW for t in draft.values.values())
    return Program(tuple(inputs), tuple(draft.steps), tuple(outputs), bool(draft.inexact), rough)


def _also(draft: Draft, x: str) -> str:
    """Another result: a value that others are made of, whole, or one that shares its memory."""
    form = draft.rng.choice(
        ("{x}", "{x}.detach()", "{x}.detach()", "{x}.view_as({x})", "{x}[None]")
    )
    if form == "{x}":
        return x
    name = f"v{len(draft.steps)}"
    draft.steps.append(Step(name, form.format(x=x), (x,)))
    return name


def _try_step(draft: Draft) -> None:
    rng = draft.rng
    (table,) = rng.choices([t for t, _ in KINDS], [w for _, w in KINDS])
    make = rng.choice(table)
    x = draft.pick()
    assert x is not None
    if make in JUMPS and not draft.exact(x):
        return
    if make in POINTWISE and draft.values[x].dtype in LOW and make in JUMPS:
        return
    text = make(draft, x)
    if text is None:
        return
    reads = tuple(n for n in draft.values if re.search(name_pattern(n), text))
    target = None if table is WRITES else f"v{len(draft.steps)}"
    before = {n: t for n, t in draft.values.items()}
    saved = {n: t._base if t._base is not None else t for n, t in before.items()}
    copies = {id(t): t.clone() for t in saved.values()}
    try:
        with torch.no_grad():
            value = eval(text, {"torch": torch, "F": F}, dict(draft.values))
    except Exception:
        _restore(saved, copies)
        return
    changed = [t for t in draft.values.values() if not draft.fits(t)]
    if changed or not isinstance(value, torch.Tensor) or not draft.fits(value):
        _restore(saved, copies)
        return
    draft.steps.append(Step(target, text, reads))
    inexact = make in ROUNDING or any(r in draft.inexact for r in reads)
    inexact = inexact or (value.dtype in LOW and table in (POINTWISE, REDUCTIONS, WRITES))
    inexact = inexact or (value.dtype.is_floating_point and not _short(value))
    if target is not None:
        draft.values[target] = value
    if inexact:
        # A write makes all that shares the memory inexact.
        memory = value.untyped_storage().data_ptr()
        for name, t in draft.values.items():
            if name == target or (table is WRITES and t.untyped_storage().data_ptr() == memory):
                draft.inexact.add(name)


def name_pattern(name: str) -> str:
    """A regular expression for ``name`` as a word of its own."""
    return rf"(?<![\w.]){name}(?!\w)"


def _restore(saved: dict[str, torch.Tensor], copies: dict[int, torch.Tensor]) -> None:
    for t in saved.values():
        if t.numel() and not (t.stride() and 0 in t.stride()):
            t.copy_(copies[id(t)])


def _largest(t: torch.Tensor) -> float:
    if t.dtype is torch.bool or not t.numel():
        return 0.0
    x = t.double().abs()
    x = x[torch.isfinite(x)]
    return float(x.max()) if x.numel() else 0.0


def _short(t: torch.Tensor) -> bool:
    """Whether a sum of such numbers is exact in float32 whatever its order."""
    x = t.double()
    x = x[torch.isfinite(x)]
    return bool((x.abs() <= 2**11).all() and (x * 64 == (x * 64).round()).all())
