"""What ``torch``'s fake tensors and reference implementations ask of a shape environment.

They reach into their own ``ShapeEnv`` by attribute; this base class answers under the same names.
Everything here exists because torch calls it, not because this package does.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchsmith_guards._src.shapes.relation import SymCondition
from torchsmith_guards._src.shapes.sym_node import SymNode


@dataclass(frozen=True, slots=True)
class _Settings:
    allow_scalar_outputs: bool = True
    allow_dynamic_output_shape_ops: bool = True


class TorchProtocol:
    """The attributes and methods that torch uses on ``FakeTensorMode.shape_env``."""

    def __init__(self) -> None:
        self.settings = _Settings()  # part of the key of torch's cache of fake results
        self.allow_scalar_outputs = True
        self.allow_dynamic_output_shape_ops = True
        self.fake_tensor_cache: dict[object, object] = {}
        self.replacements: dict[object, object] = {}
        self.var_to_range: dict[object, object] = {}
        self.unbacked_alloc_order: dict[object, int] = {}
        self.pending_fresh_unbacked_symbols: list[object] = []
        self.ignorable_fresh_unbacked_symbols: list[object] = []

    @abstractmethod
    def evaluate_condition(
        self, condition: SymCondition | bool, fallback: bool | None = None
    ) -> bool: ...

    @abstractmethod
    def static_truth(self, condition: SymCondition | bool) -> bool | None: ...

    @abstractmethod
    def bound_unbacked(self, name: str, lo: int, hi: int | None) -> None: ...

    @abstractmethod
    def create_unbacked(self, *, size: bool = False) -> torch.SymInt: ...

    def evaluate_sym_node(
        self, node: SymNode, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> Any:
        """Behind ``guard_or_false``, ``guard_or_true`` and the like."""
        if node.is_bool():
            return self.evaluate_condition(node.condition, fallback_value)
        return node.specialise()

    def _maybe_evaluate_static(self, expr: object, **_: object) -> object | None:
        """Behind ``statically_known_true``; ``expr`` is what ``SymNode.expr`` gave out."""
        from torchsmith_guards._src.shapes import relation as rel

        if isinstance(expr, bool):
            return expr
        if isinstance(expr, rel.Relation | rel.FloatRelation | rel.Junction | rel.Inverted):
            return self.static_truth(expr)
        return None

    def create_unbacked_symint(self, source: object = None) -> torch.SymInt:
        """A size that an operator computes from data (``nonzero``, ``item``)."""
        return self.create_unbacked()

    @abstractmethod
    def create_unbacked_float(self) -> torch.SymFloat: ...

    def create_unbacked_symfloat(self) -> torch.SymFloat:
        """``item`` of a floating-point tensor."""
        return self.create_unbacked_float()

    def create_unbacked_symbool(self) -> torch.SymBool:
        """``item`` of a bool tensor."""
        truth = self.create_unbacked() == 1
        assert isinstance(truth, torch.SymBool), "the data decides"
        return truth

    @contextlib.contextmanager
    def ignore_fresh_unbacked_symbols(self) -> Iterator[None]:
        """Torch tracks unbacked symbols until they appear in an output; this package does not."""
        yield

    def _constrain_range_for_size(
        self, symbol: object, min: int | None = None, max: int | None = None
    ) -> None:
        """Torch says that an unbacked symbol is a size."""
        self.bound_unbacked(str(symbol), 0 if min is None else min, max)

    def freeze_runtime_asserts(self) -> None:
        """Torch calls this when its graph is complete; ours needs no such step."""
