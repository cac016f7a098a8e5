"""``FakeMode``: binds real tensors to fake ones, static or with symbols of our ``ShapeEnv``."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from torchsmith_guards._src.fake.build import new_strided, new_view
from torchsmith_guards._src.fake.torch_mode import TorchMode
from torchsmith_guards._src.guards.tensor_spec import from_smallest_stride, leads_nowhere
from torchsmith_guards._src.shapes.env import ShapeEnv
from torchsmith_guards._src.sources.sources import Source, TensorPropertySource
from torchsmith_guards._src.torch_private import no_torch_dispatch, no_torch_function
from torchsmith_guards.errors import UnsupportedTensorError

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class FakeMode:
    """Makes fake tensors and runs operators on them.

    Attributes:
        mode: context manager; operators called inside compute metadata only.
        shape_env: owner of the symbols; None when all shapes are static.
    """

    mode: TorchMode

    def __init__(self, shape_env: ShapeEnv | None = None) -> None:
        self.shape_env = shape_env
        self.mode = TorchMode(shape_env)
        self._memo: dict[int, tuple[weakref.ref[torch.Tensor], FakeTensor]] = {}

    def fakeify(
        self,
        tensor: torch.Tensor,
        source: Source | None = None,
        dynamic_dims: Collection[int] | None = None,
        unbacked_dims: Collection[int] = (),
        dynamic_strides: Collection[int] = (),
    ) -> FakeTensor:
        """The fake tensor of a real one; the same one again for the same tensor.

        Strides, device, dtype, ``requires_grad``, leaf-ness, conjugate and negative bits and
        being a parameter are kept. Views come back as tensors of their own.

        Args:
            tensor: a plain strided tensor or a parameter (or a fake tensor, given back as it is).
            source: where it was found; needed for ``dynamic_dims``.
            dynamic_dims: dimensions whose size becomes a symbol. Equal sizes share one; sizes 0 and
                1 stay as they are. A stride that is a product with a dynamic size in it becomes
                that product, and the shape environment guards it.
            unbacked_dims: those of them of whose size nothing is assumed, 0 and 1 included.
            dynamic_strides: dimensions whose stride becomes a symbol where it is no such product
                but greater than it has to be.

        Raises:
            UnsupportedTensorError: sparse, quantised, nested or subclassed tensors.
        """
        if isinstance(tensor, FakeTensor):
            return tensor
        known = self._memo.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        if not _is_plain(type(tensor)) or tensor.layout is not torch.strided or tensor.is_nested:
            raise UnsupportedTensorError(what=f"{type(tensor).__name__} of {tensor.layout}")
        if tensor.is_quantized:
            raise UnsupportedTensorError(what=f"a quantised tensor of {tensor.dtype}")
        size: tuple[Any, ...] = tuple(tensor.shape)
        stride: tuple[Any, ...] = tensor.stride()
        varies = bool(dynamic_dims or dynamic_strides)
        if varies and source is not None and self.shape_env is not None:
            size, stride = _symbolic_layout(
                self.shape_env, tensor, source, dynamic_dims or (), unbacked_dims, dynamic_strides
            )
        fake = self._finish(tensor, self._allocate(tensor, size, stride))
        key = id(tensor)
        self._memo[key] = (weakref.ref(tensor), fake)
        if self.shape_env is not None:
            # Its symbols go with a rollback, so the fake tensor must not be found again.
            self.shape_env.on_rollback(lambda: self._memo.pop(key, None))
        return fake

    def new_strided(
        self, size: Any, stride: Any, dtype: torch.dtype, device: torch.device
    ) -> FakeTensor:
        """A new fake tensor of this layout, of no real one; no operator runs for it."""
        return new_strided(self.mode, size, stride, dtype, device)

    def view(
        self, base: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int
    ) -> FakeTensor:
        """A view of ``base`` whose writes count as writes to it, but without a history."""
        assert isinstance(base, FakeTensor)
        return new_view(self.mode, base, size, stride, offset)

    def close(self) -> None:
        """Forget the real tensors. Fake ones stay usable, for whoever holds the graph."""
        self._memo.clear()

    def _allocate(
        self, tensor: torch.Tensor, size: tuple[Any, ...], stride: tuple[Any, ...]
    ) -> FakeTensor:
        offset = tensor.storage_offset()
        if not offset:
            return self.new_strided(size, stride, tensor.dtype, tensor.device)
        meta = torch.empty_strided(size, stride, dtype=tensor.dtype, device="meta")
        extent = meta.untyped_storage().nbytes() // meta.element_size() + offset
        meta = torch.empty(extent, dtype=tensor.dtype, device="meta")
        return FakeTensor(self.mode, meta.as_strided(size, stride, offset), tensor.device)

    def _finish(self, tensor: torch.Tensor, made: FakeTensor) -> FakeTensor:
        """Bits, leaf-ness and class, which are not part of the layout."""
        parameter = isinstance(tensor, torch.nn.Parameter)
        if not (parameter or tensor.requires_grad or tensor.is_conj() or tensor.is_neg()):
            return made
        if parameter and not (tensor.is_conj() or tensor.is_neg()):
            # What ``Parameter(made)`` makes, which detaches it in an operator under the mode.
            made._is_param = True
            made.requires_grad = tensor.requires_grad
            return made
        fake: torch.Tensor = made
        with self.mode:
            if tensor.is_conj():
                fake = torch.conj(fake)
            if tensor.is_neg():
                fake = torch._neg_view(fake)
            if isinstance(tensor, torch.nn.Parameter):
                fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
            elif tensor.requires_grad:
                fake = fake.detach() if not fake.is_leaf else fake
                fake.requires_grad_()
                if not tensor.is_leaf:
                    with torch.enable_grad():
                        fake = self._computed(fake)
        assert isinstance(fake, FakeTensor), "every step above keeps the class"
        return fake

    def _computed(self, fake: torch.Tensor) -> torch.Tensor:
        if fake._is_view():
            return fake.view_as(fake)
        leaf = self.new_strided((0,), (1,), fake.dtype, fake.device).requires_grad_()
        return _Computed.apply(leaf, [fake.requires_grad_(False)])  # type: ignore


class _Computed(torch.autograd.Function):
    """Gives a tensor a history, and is no view: a program may write into it."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, made: list[torch.Tensor]) -> torch.Tensor:
        return made[0]


def _is_plain(cls: type) -> bool:
    """Whether C++ runs no Python code for tensors of this class."""
    if cls in _PLAIN:
        return True
    return getattr(cls, "__torch_function__", None) is no_torch_function and (
        getattr(cls, "__torch_dispatch__", None) is no_torch_dispatch
    )


def _symbolic_layout(
    env: ShapeEnv,
    tensor: torch.Tensor,
    source: Source,
    dynamic_dims: Collection[int],
    unbacked_dims: Collection[int],
    dynamic_strides: Collection[int],
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Sizes with symbols for ``dynamic_dims``, and strides as products of them.

    Dimensions are visited from the smallest stride up, as in ``stride_dependents``, which leaves
    the same strides free in the tensor's guard.
    """
    sizes: list[Any] = list(map(int, tensor.size()))
    for dim in sorted(dynamic_dims):
        where = TensorPropertySource(source, "size", dim)
        free = dim in unbacked_dims
        sizes[dim] = env.unbacked_size(where) if free else env.create_symbol(sizes[dim], where)
    strides: list[Any] = list(tensor.stride())
    expected = 1
    symbolic: Any = 1
    for dim in from_smallest_stride(tensor):
        size, stride = tensor.size(dim), tensor.stride(dim)
        if stride == 0:
            continue
        where = TensorPropertySource(source, "stride", dim)
        if leads_nowhere(size, stride) and dim in dynamic_strides:
            strides[dim] = env.create_symbol(stride, where, "stride")
            continue
        if stride != expected:
            symbolic, least = stride, symbolic
            if stride > max(expected, 1) and dim in dynamic_strides:
                symbolic = strides[dim] = env.create_symbol(stride, where, "stride")
                gap = symbolic > least
                env.require(gap.node.condition if isinstance(gap, torch.SymBool) else gap)
            expected = stride
        elif isinstance(symbolic, torch.SymInt):
            strides[dim] = symbolic
            env.track(where, symbolic)
        expected, symbolic = expected * size, symbolic * sizes[dim]
    return tuple(sizes), tuple(strides)
