"""What wrappers call besides aten and kernels."""

import pytest
import torch
from torchsmith_fx_backend._src.codegen.wrapper import print_wrapper
from torchsmith_fx_backend._src.runtime.support import add_rows, embedding_gradient
from torchsmith_fx_backend._src.schedule.plan import ExternCall, Name, Plan

BACKWARD = torch.ops.aten.embedding_dense_backward.default


@pytest.mark.parametrize("padding", [-1, 0, 3])
@pytest.mark.parametrize(
    ("shape", "width", "spread"),
    [((7,), 4, False), ((2, 9), 3, False), ((0,), 4, False), ((), 2, False), ((3, 5), 0, False)]
    + [((4, 3), 6, True)],
    ids=str,
)
@pytest.mark.parametrize("kind", [torch.int64, torch.int32], ids=str)
def test_added_rows_are_the_gradient_of_an_embedding(shape, width, spread, padding, kind):
    indices = torch.randint(0, 5, shape).to(kind)
    grad = torch.randn(*shape, width)
    if spread:
        indices, grad = indices.t(), grad.transpose(0, 1)
    want = BACKWARD(grad, indices, 5, padding, False)
    got = add_rows(grad, indices, 5, padding)
    torch.testing.assert_close(got, want)
    assert (got.stride(), got.dtype) == (want.stride(), want.dtype)


def test_what_counts_frequencies_or_runs_on_a_cpu_stays_with_aten():
    indices, grad = torch.tensor([0, 1, 1]), torch.randn(3, 2)
    for by_frequency in (False, True):
        got = embedding_gradient(grad, indices, 2, -1, by_frequency)
        assert torch.equal(got, BACKWARD(grad, indices, 2, -1, by_frequency))


def test_wrappers_call_it():
    call = ExternCall(BACKWARD, (Name("g"), Name("i"), 5, -1, False), (), ("r",))
    text = print_wrapper(Plan(("g", "i"), (), (call,), (Name("r"),)), []).text
    assert "r = embedding_gradient(g, i, 5, -1, False)" in text
