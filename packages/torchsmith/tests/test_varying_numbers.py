"""Integers given to operators that are others at each call: eager's results, gradients, errors."""

import pytest
import torch
import torch.nn.functional as F
import torchsmith

LABELS = torch.tensor([0, 1, 2, 3])
PROGRAMS = {
    "diagonal": lambda x, k: torch.diagonal(x, k) + 1,
    "tril": lambda x, k: x.tril(k) * 2,
    "diag_embed": lambda x, k: torch.diag_embed(x, k) + 1,
    "diagonal_scatter": lambda x, k: torch.diagonal_scatter(x, x.diagonal(k) * 0, k),
    "roll": lambda x, k: x.roll(k, 0) + 1,
    "flip": lambda x, k: x.flip(k) + 1,
    "select": lambda x, k: x.select(0, k) + 1,
    "narrow": lambda x, k: x.narrow(0, k, 2) + 1,
    "slices": lambda x, k: x[k:] + x[: x.shape[0] - k].sum(),
    "steps": lambda x, k: x[:: k + 1] + 1,
    "split": lambda x, k: [part + 1 for part in x.split(k + 1)],
    "chunk": lambda x, k: [part + 1 for part in x.chunk(k + 1)],
    "tensor_split": lambda x, k: [part + 1 for part in x.tensor_split(k + 1)],
    "sum": lambda x, k: x.sum(k) + 1,
    "cumsum": lambda x, k: x.cumsum(k) + 1,
    "softmax": lambda x, k: x.softmax(k),
    "argmax": lambda x, k: x.argmax(k),
    "quantile": lambda x, k: torch.quantile(x, 0.5, dim=k),
    "gather": lambda x, k: x.gather(k, (x > 0).long()),
    "scatter_add": lambda x, k: x.scatter_add(k, (x > 0).long(), x),
    "index_add": lambda x, k: x.index_add(k, LABELS, x.expand(4, 4)),
    "cat": lambda x, k: torch.cat([x, x], k) + 1,
    "stack": lambda x, k: torch.stack([x, x], k) + 1,
    "transpose": lambda x, k: x.transpose(0, k) + 1,
    "unsqueeze": lambda x, k: x.unsqueeze(k) + 1,
    "repeat": lambda x, k: x.repeat(k + 1, 1) + 1,
    "repeat_interleave": lambda x, k: x.repeat_interleave(k + 1, 0) + 1,
    "expand": lambda x, k: x[:, None].expand(-1, k + 1, -1) + 1,
    "pad": lambda x, k: F.pad(x, (k, 0, k, k)),
    "unfold": lambda x, k: x.unfold(0, 2, k + 1) + 1,
    "topk": lambda x, k: x.topk(k + 1)[0] + 1,
    "kthvalue": lambda x, k: x.kthvalue(k + 1)[0] + 1,
    "one_hot": lambda x, k: F.one_hot((x > 0).long(), k + 2),
    "bincount": lambda x, k: torch.bincount((x[0] > 0).long(), minlength=k + 2),
    "clamp": lambda x, k: x.clamp(max=k),
    "norm": lambda x, k: x.norm(p=k + 1),
    "nll_loss": lambda x, k: F.nll_loss(x, LABELS, ignore_index=k),
    "cross_entropy": lambda x, k: F.cross_entropy(x, LABELS, ignore_index=k),
    "avg_pool1d": lambda x, k: F.avg_pool1d(x[None], k + 1),
    "conv1d": lambda x, k: F.conv1d(x[None], torch.ones(1, 4, 2), padding=k),
    "full": lambda x, k: torch.full((k + 1,), k * 1.5) + x[0, 0],
    "arange": lambda x, k: torch.arange(k, 10) + x[0, 0],
    "rot90": lambda x, k: torch.rot90(x, k) + 1,
    "diff": lambda x, k: torch.diff(x, n=k + 1),
}


def run(fn, x, k):
    """Results and the gradient, or the error."""
    x = x.clone().requires_grad_()
    try:
        found = fn(x, k)
    except Exception as error:  # noqa: BLE001 - compared with the other one's
        return type(error), str(error)
    results = found if isinstance(found, list) else [found]
    total = [r.cos().sum() for r in results if r.requires_grad]
    return [*(r.detach() for r in results), *(torch.autograd.grad(sum(total), x) if total else ())]


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_number_has_its_result(name):
    fn = PROGRAMS[name]
    torch.manual_seed(0)
    x = torch.randn(4, 4)
    compiled = torchsmith.compile(fn)
    for k in (0, 1, 2, 3, 1, 0):
        want, got = run(fn, x, k), run(compiled, x, k)
        if isinstance(want, tuple):
            assert got == want
            continue
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, check_stride=True)


REFUSED = {
    "softmax": lambda x: x.softmax(2),
    "log_softmax": lambda x: F.log_softmax(x, -3),
    "softmax of a number": lambda x: x[0, 0].softmax(1),
    "cumsum": lambda x: x.cumsum(2),
    "gather": lambda x: x.gather(2, (x > 0).long()),
    "index_add": lambda x: x.index_add(2, torch.tensor([0]), x),
    "stack": lambda x: torch.stack([x, x], 4),
    "select": lambda x: x.select(0, 9),
    "narrow": lambda x: x.narrow(0, 3, 9),
    "expand": lambda x: x.expand(9, 9),
    "view": lambda x: x.view(7),
    "layer_norm": lambda x: F.layer_norm(x, (9,)),
    "group_norm": lambda x: F.group_norm(x, 3),
    "pad": lambda x: F.pad(x, (-9, 0)),
    "matmul": lambda x: x @ x[:2],
    "add": lambda x: x + torch.ones(7),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.ones(7).long()),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x[:, :2, None]),
    "pool": lambda x: F.max_pool2d(x, 9),
    "topk": lambda x: x.topk(99)[0],
    "chunk": lambda x: x.chunk(0),
}


@pytest.mark.parametrize("gradient", [False, True], ids=["", "gradient"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_its_own_error(name, gradient):
    """And none that tells of a failure of the compiler."""
    fn, x = REFUSED[name], torch.randn(4, 4, requires_grad=gradient)
    with pytest.raises(Exception) as want:  # noqa: PT011 - whichever eager raises
        fn(x)
    with pytest.raises(want.type) as got:
        torchsmith.compile(fn)(x)
    assert str(got.value) == str(want.value)
