"""One differentiable ``torch.library`` operator: kernel, fake kernel, autograd and autocast.

``Op`` registers them and is what the public functions call. A call that nothing watches (no
compiler, mode, transform, autocast, profiler, tensor subclass, negative view or batch of gradients)
goes straight to the kernel, which saves the dispatcher's two round trips through Python, about
10 us; every other call goes through the registered operator, so that tracers, ``torch.func`` and
tensor subclasses see it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from torchsmith_kernels._src import private

# Untyped in torch. FRAGMENT, since other packages may define ops of the same namespace.
library: Any = cast(Any, torch.library.Library)("torchsmith", "FRAGMENT")

#: ``float32`` computes in float32 as losses and norms do under autocast, ``lower`` in autocast's
#: own type as matrix products do. A function maps the arguments itself.
Autocast = Literal["float32", "lower"] | Callable[[tuple[Any, ...]], tuple[Any, ...]]


def define(
    schema: str,
    *,
    cpu: Callable[..., Any],
    cuda: Callable[..., Any],
    fake: Callable[..., Any],
    tags: tuple[torch.Tag, ...] = (),
) -> Any:
    """Defines ``torchsmith::<name>`` and returns its overload.

    Args:
        schema: the op's signature, starting with its name.
        cpu: implementation for CPU tensors.
        cuda: implementation for CUDA tensors.
        fake: shapes, strides and dtypes without data.
        tags: further tags, such as ``torch.Tag.nondeterministic_seeded``.
    """
    name = schema.partition("(")[0]
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag, *tags))
    library.impl(name, cpu, "CPU")
    library.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"torchsmith::{name}", fake, lib=library)
    return getattr(torch.ops.torchsmith, name).default


def autograd(name: str, function: Callable[..., Any]) -> None:
    """Registers ``function`` under the op's Autograd key."""
    library.impl(name, function, "Autograd")


class Op:
    """A registered operator that takes its arguments by position.

    Attributes:
        name: its name below ``torchsmith::``.
        overload: the registered ``torch.ops`` overload.
    """

    def __init__(
        self,
        schema: str,
        *,
        kernel: Callable[..., Any],
        fake: Callable[..., Any],
        setup_context: Callable[[Any, tuple[Any, ...], Any], None] | None = None,
        backward: Callable[..., Any] | None = None,
        autocast: Autocast | None = None,
        exempt: tuple[str, ...] = (),
        tags: tuple[torch.Tag, ...] = (),
    ) -> None:
        """Registers ``torchsmith::<name>``.

        Args:
            schema: the op's signature, starting with its name; no keyword-only arguments.
            kernel: computes on real tensors; takes every argument of the schema by position.
            fake: the same for shapes, strides and dtypes without data; raises the same errors.
            setup_context: as of ``torch.autograd.Function``: ``(ctx, inputs, output)``. A true
                ``ctx.outputs_are_private`` says that only the public function sees the outputs.
            backward: as of ``torch.autograd.Function``: ``(ctx, *grads)``, one result per argument
                of the schema. None for an op without derivatives.
            autocast: how arguments are cast under autocast; None leaves them.
            exempt: names of arguments that autocast leaves.
            tags: further tags of the operator.
        """
        self.name = schema.partition("(")[0]
        self._kernel = kernel
        padded_kernel, padded_fake = self._padded(kernel), self._padded(fake)
        self.overload = define(
            schema, cpu=padded_kernel, cuda=padded_kernel, fake=padded_fake, tags=tags
        )
        arguments = self.overload._schema.arguments
        self._defaults = tuple(
            argument.default_value if argument.has_default_value() else None
            for argument in arguments
        )
        self._apply: Any = None
        if backward is not None and setup_context is not None:
            direct, below, transformed = self._functions(setup_context, backward)
            self._apply, self._apply_below, self._apply_transformed = direct, below, transformed
            autograd_function = self._padded(self._autograd)
            library.impl(self.name, autograd_function, "Autograd")
        if autocast is not None:
            for kind in ("CUDA", "CPU"):
                function = self._padded(_Autocast(self, kind.lower(), autocast, exempt))
                library.impl(self.name, function, f"Autocast{kind}")

    def __call__(self, *args: Any) -> Any:
        """Computes the op; the arguments are those of the schema, by position, none left out."""
        if torch.compiler.is_compiling():
            return self.overload(*args)
        record = False
        for arg in args:
            if isinstance(arg, Tensor):
                kind = type(arg)
                if kind is not Tensor and kind is not Parameter:
                    return self._dispatch(args)
                if arg.is_neg() or private.is_batched(arg):
                    return self._dispatch(args)  # which writes out what is not in memory as it is
                record = record or arg.requires_grad
        if private.watched() or private.transforms_active():
            return self._dispatch(args)
        if record and self._apply is not None and torch.is_grad_enabled():
            return self._apply(*args)
        return self._kernel(*args)

    @staticmethod
    def watched(*args: Any) -> bool:
        """Whether a call with these arguments has to go through the dispatcher."""
        return (
            torch.compiler.is_compiling()
            or any(
                type(a) not in (Tensor, Parameter) or a.is_neg() or private.is_batched(a)
                for a in args
                if isinstance(a, Tensor)
            )
            or private.watched()
            or private.transforms_active()
        )

    def _dispatch(self, args: tuple[Any, ...]) -> Any:
        if self._apply is not None and private.transforms_active():
            # torch.func sees an autograd.Function only from outside of the dispatcher.
            return self._apply_transformed(*args)
        return self.overload(*args)

    def _padded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` with the schema's defaults, which the dispatcher leaves out, put back."""

        def padded(*args: Any) -> Any:
            return function(*args, *self._defaults[len(args) :])

        return padded

    def _autograd(self, *args: Any) -> Any:
        recorded = torch.is_grad_enabled() and any(
            isinstance(arg, Tensor) and arg.requires_grad for arg in args
        )
        # Only a Function refuses tangents, which the kernels would drop.
        if recorded or private.forward_mode():
            return self._apply_below(*args)
        return self._below(*args)

    def _below(self, *args: Any) -> Any:
        with private.below_autograd():
            return self.overload(*args)

    def _functions(self, setup: Any, backward: Callable[..., Any]) -> tuple[Any, Any, Any]:
        """``apply`` for calls past the dispatcher, inside of it, and under ``torch.func``."""

        def forward_by(compute: Callable[..., Any], private: bool) -> Any:
            def forward(ctx: Any, *args: Any) -> Any:
                output = compute(*args)
                ctx.outputs_are_private = private
                setup(ctx, args, output)
                return output

            return staticmethod(forward)

        base: Any = torch.autograd.Function

        def subclass(**functions: Any) -> Any:
            return type(self.name, (base,), {"backward": staticmethod(backward), **functions})

        # What the overload returns belongs to its caller, and backward must not overwrite it.
        direct = subclass(forward=forward_by(self._kernel, private=True))
        below = subclass(forward=forward_by(self._below, private=False))
        # A separate setup_context is what torch.func needs; it costs 13 us.
        transformed = subclass(forward=staticmethod(self._below), setup_context=staticmethod(setup))
        return direct.apply, below.apply, transformed.apply


class _Autocast:
    """Casts floating point arguments as autocast does for ops of this kind, and calls again."""

    def __init__(self, op: Op, device_type: str, policy: Autocast, exempt: tuple[str, ...]) -> None:
        self.op, self.device_type, self.policy = op, device_type, policy
        arguments = op.overload._schema.arguments
        self.cast = tuple(argument.name not in exempt for argument in arguments)

    def __call__(self, *args: Any) -> Any:
        if callable(self.policy):
            cast_args = self.policy(args)
        else:
            dtype = torch.float32
            if self.policy == "lower":
                dtype = torch.get_autocast_dtype(self.device_type)
            cast_args = tuple(
                self._cast(arg, dtype) if cast else arg
                for arg, cast in zip(args, self.cast, strict=True)
            )
        with torch.autocast(self.device_type, enabled=False):
            return self.op(*cast_args)

    def _cast(self, arg: Any, dtype: torch.dtype) -> Any:
        if not isinstance(arg, Tensor) or not arg.is_floating_point():
            return arg
        if arg.dtype is torch.float64 or arg.device.type != self.device_type:
            return arg
        return arg.to(dtype)
