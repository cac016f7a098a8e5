"""A kernel of a backward half reads what the forward half saved, also of operators that return
another layout than their fakes tell."""

import pytest
import torch
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)
RETURNED = {
    "dtype": lambda x: (x * 0.5).double(),
    "strides": lambda x: (x.t().contiguous() * 0.5).t(),
}


@torch.library.custom_op("saved_layouts::total", mutates_args=())
def total(x: torch.Tensor) -> torch.Tensor:
    """Read by a call, so that no kernel of the forward half reads it."""
    return x.sum().float()


def operator(name):
    """An operator whose gradient reads its result, and whose fake tells of one like its argument;
    ``total`` after it."""

    def returned(x: torch.Tensor) -> torch.Tensor:
        return RETURNED[name](x)

    op = torch.library.custom_op(f"saved_layouts::{name}", returned, mutates_args=())
    op.register_fake(torch.empty_like)
    op.register_autograd(
        lambda ctx, grad: grad * ctx.saved_tensors[0].sin().float(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
    )
    return op


@total.register_fake
def _(x):
    return x.new_empty(())


total.register_autograd(
    lambda ctx, grad: grad.expand(ctx.size),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "size", inputs[0].shape),
)


@pytest.mark.parametrize("name", RETURNED)
def test_what_is_saved_is_what_the_backward_half_expects(name):
    op = operator(name)

    def fn(x):
        return total(op(x))

    x = torch.randn(5, 7, requires_grad=True)
    compiled = compile_training(torch.fx.symbolic_trace(fn), [x], SETTINGS)
    for _ in range(2):
        found, wanted = (torch.autograd.grad(run(x), x)[0] for run in (compiled, fn))
        torch.testing.assert_close(found, wanted)
