"""Texts with addresses, ``<Point object at 0x7f...>``, or with numbers out of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject
from torchsmith_tracer._src.values.constants import ConstantValue, bool_value

if TYPE_CHECKING:
    from torchsmith_tracer._src.values.symnum import SymNumValue
    from torchsmith_tracer._src.values.tensor import TensorValue


class NumberText(Value):
    """``format(tensor, spec)`` for a tensor with one element, which is made after the graph if
    somebody wants it: most are for errors that do not happen."""

    __slots__ = ("node", "spec", "tensor")
    cls = str

    def __init__(self, tensor: TensorValue, spec: str) -> None:
        super().__init__(None)
        self.tensor, self.node, self.spec = tensor, tensor.node, spec

    def reconstruct(self, cg: Emitter) -> str:
        if self.tensor.node is not self.node:  # it was changed in place since
            raise Unsupported("cannot-rebuild", what=f"text of a {self.tensor.describe()}")
        return cg.call(format, self.tensor, cg.const(self.spec))


class AddressedText(BuiltinObject):
    """A string that is known but for addresses, which differ between calls, and numbers: ``parts``
    are texts, ``NumberText``, ``CountText`` and, for each address, the object. It can be handed
    around, joined and printed; two of them without numbers are equal or not."""

    __slots__ = ("parts",)
    cls = str

    def __init__(self, parts: list[str | Value]) -> None:
        self.source = None
        self.parts = parts

    def describe(self) -> str:
        return f"a text with {'a number of a tensor' if _has_numbers(self) else 'an address'}"

    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        if op == "add" and isinstance(other, ConstantValue | AddressedText):
            if issubclass(other.python_type(), str):
                return joined([other, self] if reflected else [self, other])
        return None

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if op not in ("eq", "ne") or _has_numbers(self):
            raise Unsupported("not-constant", what=self.describe())
        if not issubclass(other.python_type(), str):
            return None
        if not isinstance(other, AddressedText) or len(other.parts) != len(self.parts):
            if self._surely_differs(other):
                return bool_value(op == "ne")
            raise Unsupported("not-constant", what=self.describe())
        same = True
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            if isinstance(mine, str) or isinstance(theirs, str):
                same = same and mine == theirs
            else:
                same = same and tx.interp.is_same(mine, theirs)
        return bool_value(same == (op == "eq"))

    def _surely_differs(self, other: Value) -> bool:
        first, last = self.parts[0], self.parts[-1]
        text = other.value if isinstance(other, ConstantValue) else None
        return isinstance(text, str) and not (
            text.startswith(first if isinstance(first, str) else "0x")
            and (not isinstance(last, str) or text.endswith(last))
        )

    def text(self, tx: Trace, name: str) -> Value:
        """``str`` or ``repr`` of the string."""
        if name == "__str__":
            return self
        if any(isinstance(part, str) and repr(part) != f"'{part}'" for part in self.parts):
            raise Unsupported("not-constant", what=self.describe())
        return AddressedText(["'", *self.parts, "'"])

    def bool(self, tx: Trace) -> bool:
        return True  # neither an address nor a number is empty

    def contains(self, tx: Trace, item: Value) -> Value:
        known = tx.interp.concrete(item)
        if isinstance(known, str) and any(isinstance(p, str) and known in p for p in self.parts):
            return bool_value(True)
        raise Unsupported("not-constant", what=self.describe())

    def hash_key(self, tx: Trace) -> object:
        if _has_numbers(self):
            raise Unsupported("not-constant", what=self.describe())
        parts = (p if isinstance(p, str) else tx.interp.identity_key(p) for p in self.parts)
        return ("text", *parts)

    def reconstruct(self, cg: Emitter) -> str:
        template = tuple(p if isinstance(p, str) else None for p in self.parts)
        objects = [p for p in self.parts if not isinstance(p, str)]
        return cg.call(_written, cg.const(template), *objects)


def directed(value: object, spec: str) -> str:
    """``spec % value`` of one directive."""
    return spec % (value,)


class CountText(Value):
    """``write(n, spec)``, as ``format`` does, for a number that varies between calls."""

    __slots__ = ("number", "spec", "write")
    cls = str

    def __init__(self, number: SymNumValue, spec: str, write: Callable[..., str]) -> None:
        super().__init__(None)
        self.number, self.spec, self.write = number, spec, write

    def as_constant(self) -> str:
        return self.write(self.number.specialize(), self.spec)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(self.write, self.number, cg.const(self.spec))


class VaryingText(AddressedText):
    """A string that is known but for numbers that vary between calls, ``f"step {n}"``. It can be
    handed around, joined and printed; whatever looks at it specialises on the numbers."""

    __slots__ = ()

    def describe(self) -> str:
        return "a text with a number that varies"

    def as_constant(self) -> str:
        return "".join(p if isinstance(p, str) else p.as_constant() for p in self.parts)  # type: ignore[misc]

    def _known(self) -> ConstantValue:
        return ConstantValue(self.as_constant())

    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        if op == "add" and issubclass(other.python_type(), str):
            return super().binary(tx, op, other, reflected=reflected)
        return self._known().binary(tx, op, other, reflected=reflected)

    def text(self, tx: Trace, name: str) -> Value:
        return self if name == "__str__" else tx.interp.repr_of(self._known())

    def format(self, tx: Trace, spec: str) -> Value:
        """``format(self, spec)``."""
        return self if not spec else tx.interp.fold(format, self.as_constant(), spec)


def _of_known(slot: str) -> Callable[..., Any]:
    known: Callable[[Any], Any] = lambda v: v._known() if isinstance(v, VaryingText) else v
    return lambda self, *args: getattr(self._known(), slot)(*map(known, args))


for _slot in "richcompare contains hash_key getitem getattr length iter".split():
    setattr(VaryingText, _slot, _of_known(_slot))


def number_text(tx: Trace, number: SymNumValue, spec: str, write: Callable[..., str]) -> Value:
    """``write(number, spec)`` for an int or float, which raises what it raises for this one."""
    known = number.python_type()(number.sym.node.hint)  # of this call
    try:
        write(known, spec)
    except (TypeError, ValueError, OverflowError):
        return tx.interp.fold(write, number.specialize(), spec)
    return VaryingText([CountText(number, spec, write)])


def _has_numbers(text: AddressedText) -> bool:
    return any(isinstance(part, NumberText | CountText) for part in text.parts)


def _written(parts: tuple[str | None, ...], *objects: object) -> str:
    rest = (obj if isinstance(obj, str) else hex(id(obj)) for obj in objects)
    return "".join(next(rest) if part is None else part for part in parts)


def joined(texts: Iterable[Value]) -> Value:
    """The texts one after the other; each is a constant or has addresses."""
    parts: list[str | Value] = []
    text: Value
    for text in texts:
        more = text.parts if isinstance(text, AddressedText) else [str(text.as_constant())]
        for part in more:
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                parts[-1] += part
            else:
                parts.append(part)
    if all(isinstance(part, str) for part in parts):
        return ConstantValue("".join(parts))  # type: ignore[arg-type]
    varies = all(isinstance(part, str | CountText) for part in parts)
    return (VaryingText if varies else AddressedText)(parts)


def at_address(before: str, target: Value) -> Value:
    """``before`` and where ``target`` lies."""
    return AddressedText([before, target, ">"])
