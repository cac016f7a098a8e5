"""How each reduction accumulates: its variables, its step, its OpenMP clause, its final value.

Floating-point sums and products accumulate in double, so the vector lanes' partial sums lose
nothing; float32 terms come there in short sums. Maximum and minimum keep NaN in a flag of their
own, since that vectorises where a NaN-propagating comparison does not. ``place`` is text appended
to the variable names: empty for scalars, ``[l]`` for one accumulator per vector lane, ``[part]``
for one per parallel part.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchsmith_fx_backend._src.codegen.c.scalars import dtype_of, literal, value_type
from torchsmith_fx_backend._src.loops.ir import Kernel, Reduce, ReduceOp, Scan, ScanOp


@dataclass(frozen=True, slots=True)
class Variable:
    """One C variable of an accumulator: its type, name, start value and reduction operator."""

    ctype: str
    name: str
    start: str
    operator: str


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The accumulator of the ``Reduce`` at ``position``."""

    position: int
    op: ReduceOp
    dtype: torch.dtype  # of the reduced value

    @property
    def vectorises(self) -> bool:
        """Whether vector lanes may keep partial results that ``clause`` combines."""
        return self.op not in (ReduceOp.ARGMAX, ReduceOp.ARGMIN)

    @property
    def in_parts(self) -> bool:
        """Whether short runs may be added in float32 first: converting each term costs more."""
        return self.op is ReduceOp.SUM and self.dtype is torch.float32

    @property
    def part(self) -> str:
        """The variable of a short run."""
        return f"part{self.position}"

    def variables(self) -> tuple[Variable, ...]:
        """The C variables, main one first."""
        name = f"acc{self.position}"
        floating = self.dtype.is_floating_point
        if self.dtype is torch.bool and self.op not in (ReduceOp.ARGMAX, ReduceOp.ARGMIN):
            every = self.op in (ReduceOp.ALL, ReduceOp.MIN, ReduceOp.PROD)
            return (Variable("int", name, "1" if every else "0", "&" if every else "|"),)
        wide = "double" if floating else "int64_t"
        match self.op:
            case ReduceOp.SUM | ReduceOp.PROD:
                product = self.op is ReduceOp.PROD
                return (Variable(wide, name, "1" if product else "0", "*" if product else "+"),)
            case ReduceOp.MAX | ReduceOp.MIN:
                word = "max" if self.op is ReduceOp.MAX else "min"
                main = Variable(value_type(self.dtype), name, self._start(), word)
                if not floating:
                    return (main,)
                return (main, Variable("int", f"nan{self.position}", "0", "|"))
            case ReduceOp.ARGMAX | ReduceOp.ARGMIN:
                # What is no better than the start leaves -1, which stands for the first place.
                ctype, best = value_type(self.dtype), f"best{self.position}"
                start = self._start()
                return (Variable(ctype, best, start, ""), Variable("int64_t", name, "-1", ""))
            case _:
                return (Variable("int", name, "0", "|"),)

    def _start(self) -> str:
        return literal(self.op.identity(self.dtype), self.dtype)

    def clause(self) -> str:
        """OpenMP ``reduction(...)`` clauses for a simd loop."""
        return " ".join(f"reduction({v.operator}:{v.name})" for v in self.variables())

    def step(self, value: str, flat: str, place: str = "") -> list[str]:
        """Statements that take in ``value``, which stands at row-major position ``flat``."""
        main = self.variables()[0].name + place
        operator = self.variables()[0].operator
        if operator in ("+", "*", "|", "&"):
            return [f"{main} {operator}= {value};"]
        match self.op:
            case ReduceOp.MAX | ReduceOp.MIN:
                sign = ">" if self.op is ReduceOp.MAX else "<"
                steps = [f"{main} = {value} {sign} {main} ? {value} : {main};"]
                if self.dtype.is_floating_point:
                    steps.append(f"{self.variables()[1].name}{place} |= {value} != {value};")
                return steps
            case _:
                best, where = (v.name + place for v in self.variables())
                wins = self._wins(value, best)
                return [
                    f"const int wins{self.position} = {wins};",
                    f"{best} = wins{self.position} ? {value} : {best};",
                    f"{where} = wins{self.position} ? {flat} : {where};",
                ]

    def _wins(self, value: str, best: str) -> str:
        high = self.op is ReduceOp.ARGMAX
        if self.dtype.is_floating_point:  # NaN wins; said so that gcc makes vector code of it
            return f"!({value} {'<=' if high else '>='} {best}) & ({best} == {best})"
        return f"{value} {'>' if high else '<'} {best}"

    def merge(self, source: str) -> list[str]:
        """Statements that take in the partial result whose variables end in ``source``."""
        if self.vectorises:
            lines = []
            for v in self.variables():
                part = v.name + source
                if v.operator in ("max", "min"):
                    sign = ">" if v.operator == "max" else "<"
                    lines.append(f"{v.name} = {part} {sign} {v.name} ? {part} : {v.name};")
                else:
                    lines.append(f"{v.name} {v.operator}= {part};")
            return lines
        best, where = self.variables()
        value, at = best.name + source, where.name + source
        first = f"({at} < {where.name}) & ({value} == {best.name})"
        if self.dtype.is_floating_point:
            both_nan = f"({value} != {value}) & ({best.name} != {best.name})"
            first = f"({at} < {where.name}) & (({value} == {best.name}) | ({both_nan}))"
        wins = f"({self._wins(value, best.name)}) | ({first})"
        return [
            f"if (({at} >= 0) && ({wins})) {{",
            f"  {best.name} = {value};",
            f"  {where.name} = {at};",
            "}",
        ]

    def merge_lanes(self, width: int) -> list[str]:
        """Statements that take in the positions of ``width`` lanes, in vectors: the best value
        first, then the first position at which some lane saw it."""
        best, where = (v.name for v in self.variables())
        value, at = f"{best}_lanes[l]", f"{where}_lanes[l]"
        high = self.op is ReduceOp.ARGMAX
        word, sign = ("max", ">") if high else ("min", "<")
        nan = f"nan{self.position}"
        floating = self.dtype.is_floating_point
        same = f"{value} == {best}"
        loop = f"for (int64_t l = 0; l < {width}; l++) {{"
        lines = [f"int {nan} = 0;"] if floating else []
        clause = f" reduction(|:{nan})" if floating else ""
        lines += [f"#pragma omp simd reduction({word}:{best}){clause}", loop]
        lines.append(f"  {best} = {value} {sign} {best} ? {value} : {best};")
        if floating:
            lines.append(f"  {nan} |= {value} != {value};")
            same = f"(({same}) | (({nan} != 0) & ({value} != {value})))"
        lines.append("}")
        if floating:
            lines.append(f"{best} = {nan} ? {literal(float('nan'), self.dtype)} : {best};")
        first = f"first{self.position}"
        return [
            *lines,
            f"int64_t {first} = INT64_MAX;",
            f"#pragma omp simd reduction(min:{first})",
            loop,
            f"  const int64_t at = ({same}) & ({at} >= 0) ? {at} : INT64_MAX;",
            f"  {first} = at < {first} ? at : {first};",
            "}",
            f"{where} = {first} == INT64_MAX ? -1 : {first};",
        ]

    def result(self, place: str = "") -> str:
        """The final value."""
        names = [v.name + place for v in self.variables()]
        if not self.vectorises:
            return f"{names[1]} < 0 ? 0 : {names[1]}"
        if len(names) == 2:
            nan = literal(float("nan"), self.dtype)
            return f"{names[1]} ? {nan} : {names[0]}"
        return f"({value_type(self.dtype)}){names[0]}"


def accumulator(kernel: Kernel, position: int) -> Accumulator:
    """The accumulator of the ``Reduce`` at ``position``."""
    node = kernel.body[position]
    if not isinstance(node, Reduce):
        raise TypeError(f"%{position} is not a reduction")
    return Accumulator(position, node.op, dtype_of(kernel, node.value))


@dataclass(frozen=True, slots=True)
class ScanState:
    """What the ``Scan`` at ``position`` carries from point to point; names as for reductions.

    Floating-point values are carried in double, as eager mode carries them.
    """

    position: int
    op: ScanOp
    dtype: torch.dtype  # of the scanned value

    @property
    def ctype(self) -> str:
        """The C type that is carried."""
        return "double" if self.dtype.is_floating_point else "int64_t"

    def variables(self) -> list[tuple[str, str, str]]:
        """C type, name and start value of each variable."""
        floating = self.dtype.is_floating_point
        start = "1" if self.op is ScanOp.PROD else "0"
        if self.op in (ScanOp.MAX, ScanOp.ARGMAX, ScanOp.LOGSUMEXP):
            start = "-__builtin_inf()" if floating else "INT64_MIN"
        elif self.op in (ScanOp.MIN, ScanOp.ARGMIN):
            start = "__builtin_inf()" if floating else "INT64_MAX"
        found = [(self.ctype, f"acc{self.position}", start)]
        if self.op in (ScanOp.ARGMAX, ScanOp.ARGMIN):
            found.append(("int64_t", f"where{self.position}", "0"))
        return found

    def step(self, value: str, flat: str, place: str) -> list[str]:
        """Statements that take in ``value``, which stands at ``flat`` in its row."""
        acc = f"acc{self.position}{place}"
        match self.op:
            case ScanOp.SUM:
                return [f"{acc} += {value};"]
            case ScanOp.PROD:
                return [f"{acc} *= {value};"]
            case ScanOp.LOGSUMEXP:
                one = "" if place else "_one"  # vectors want polynomials, single values do not
                return [f"{acc} = ts_logaddexp{one}({value}, {acc});"]
        sign = ">=" if self.op in (ScanOp.MAX, ScanOp.ARGMAX) else "<="
        # A comparison with a NaN that is carried is false.
        takes = f"{value} {sign} {acc}"
        if self.dtype.is_floating_point:
            takes = f"({takes}) | ({value} != {value})"
        lines = [f"const int takes{self.position} = {takes};"]
        lines.append(f"{acc} = takes{self.position} ? {value} : {acc};")
        if self.op in (ScanOp.ARGMAX, ScanOp.ARGMIN):
            where = f"where{self.position}{place}"
            lines.append(f"{where} = takes{self.position} ? {flat} : {where};")
        return lines

    def result(self, place: str) -> str:
        """The value at the point that was taken in last."""
        if self.op in (ScanOp.ARGMAX, ScanOp.ARGMIN):
            return f"where{self.position}{place}"
        return f"({value_type(self.dtype)})acc{self.position}{place}"


def scan(kernel: Kernel, position: int) -> ScanState:
    """What the ``Scan`` at ``position`` carries."""
    node = kernel.body[position]
    if not isinstance(node, Scan):
        raise TypeError(f"%{position} is not a scan")
    return ScanState(position, node.op, dtype_of(kernel, node.value))
