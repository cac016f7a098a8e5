"""Sizes and numbers that only data decides, kept in one graph: eager's results and gradients."""

import pytest
import torch
import torchsmith
import torchsmith_fx_backend

OPTIONS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


def by_expert(x):
    """Rows of a mixture of experts, each expert's looked up and added."""
    chosen, out = (x * 7).long().sum(1) % 3, torch.zeros_like(x)
    for k in range(3):
        (rows,) = torch.where(chosen == k)
        out = out.index_add(0, rows, x[rows] * (k + 1))
    return out


def twice_the_same(x):
    rows = (x > 0).nonzero()[:, 0]
    return x[rows].sum() * (x > 0).nonzero()[:, 0].numel()


def numbers_and_sizes(x):
    count = int((x > 0).sum().item())
    return x.sum() * (x > 0).sum().item() + torch.ones(count).sum()


def positive(x):
    return int((x[:, 0] > 0).sum().item())


def first_halved(x):
    y, n = x * 2, positive(x)
    y[:n] *= 0.5
    y[n:] += 1
    return y[n:], y.sum()


def both_parts(x):
    n = positive(x)
    return torch.cat([x[n:] * 2, x[:n].cos()]), torch.stack([x[:n], x[:n].exp()]).sum(0)


PROGRAMS = {
    "count": lambda x: x * (x > 0).nonzero().shape[0],
    "numel": lambda x: x * (x > 0).nonzero().numel(),
    "len": lambda x: x * len(x[x > 0]),
    "sum of some": lambda x: x[x > 0].sum() * x[x > 0].shape[0],
    "mean of some": lambda x: x[x > 0].sum() / ((x > 0).nonzero().shape[0] + 1),
    "at least one": lambda x: x[x > 0].sum() / max((x > 0).nonzero().shape[0], 1),
    "at most three": lambda x: x * min(3, (x > 0).nonzero().shape[0]),
    "most of three": lambda x: x * max(len(x[x > 0]), 2, len(x[x < 0])),
    "ones of one or more": lambda x: x.sum() + torch.ones(max(len(x[x > 0]), 1)).sum(),
    "largest": lambda x: x / max(x.detach().max().item(), 0.5),
    "ones": lambda x: torch.ones(x[x > 0].shape[0]).sum() + x.sum(),
    "two masks": lambda x: x[x > 0].sum() * x[x < 0].numel() + x[x < 0].numel(),
    "number": lambda x: x * int((x > 0).sum()),
    "first of them": lambda x: x[: int((x[:, 0] > 0).sum().item())].sin().sum() + x.sum(),
    "the rest": lambda x: x[positive(x) :] * 2,
    "the last": lambda x: x[-positive(x) :] * 2,
    "all but the last": lambda x: x[: -positive(x)] * 2,
    "columns": lambda x: x[:, positive(x) - 2 :].sum(1),
    "between": lambda x: x[positive(x) - 3 : positive(x) + 3].exp(),
    "a product": lambda x: x[positive(x) :].t() @ x[positive(x) :],
    "narrowed": lambda x: x.narrow(0, positive(x), x.shape[0] - positive(x)).sum(0),
    "first halved": first_halved,
    "both parts": both_parts,
    "unique": lambda x: x.sum() * (x > 0).long().unique().shape[0],
    "by expert": by_expert,
    "twice the same": twice_the_same,
    "numbers and sizes": numbers_and_sizes,
}


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_for_all_that_data_decides(name, gradient, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_STRICT", "1")
    fn, made = PROGRAMS[name], []

    def backend(gm, inputs, **options):
        made.append(gm)
        return torchsmith_fx_backend.smith(gm, inputs, **options)

    backend.modes = torchsmith_fx_backend.smith.modes
    compiled = torchsmith.compile(fn, backend=backend, fullgraph=True, options=OPTIONS)
    for n in (6, 7, 4, 9):
        for x in (torch.randn(n, 5), torch.ones(n, 5), -torch.ones(n, 5)):
            here = [x.clone().requires_grad_(gradient) for _ in range(2)]
            got, want = compiled(here[0]), fn(here[1])
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, check_stride=True)
            if gradient:
                sums = [
                    sum(map(torch.sum, y)) if isinstance(y, tuple) else y.sum() for y in (got, want)
                ]
                pair = [torch.autograd.grad(y, x)[0] for y, x in zip(sums, here)]
                torch.testing.assert_close(*pair)
    assert len(made) == 2  # for the first size, and for all


VIEWS = {
    "rest": lambda x, n: x[n.item() :],
    "first": lambda x, n: x[: n.item()],
    "last columns": lambda x, n: x[:, n.item() :].t(),
    "row": lambda x, n: x[n.item()],
    "narrow": lambda x, n: x.narrow(0, n.item(), 2),
}


@pytest.mark.parametrize("name", VIEWS)
def test_parts_lie_where_eager_has_them(name, monkeypatch):
    """Numbers may be negative or beyond the end, where eager may raise."""
    monkeypatch.setenv("TORCHSMITH_STRICT", "1")

    def told(fn, n):
        x = torch.arange(40.0).view(8, 5).clone()
        try:
            part = fn(x, torch.tensor(n))
        except (IndexError, RuntimeError) as error:
            return type(error), str(error).splitlines()[0][:40]
        part.add_(1)
        same = part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        return part.tolist(), part.stride(), same and part.storage_offset(), x.tolist()

    compiled = torchsmith.compile(VIEWS[name], fullgraph=True, options=OPTIONS)
    for n in (3, 0, 1, 8, 9, 30, -1, -2, -8, -9):
        assert told(compiled, n) == told(VIEWS[name], n), n


def test_writes_into_parts_of_inputs():
    def fn(x, n):
        x[: n.item()] = 0
        x[n.item() :] += 1
        return x * 2

    compiled = torchsmith.compile(fn, fullgraph=True, options=OPTIONS)
    for n in (3, 0, 1, 8, 9, -2):
        here = [torch.ones(8, 5) for _ in range(2)]
        torch.testing.assert_close(compiled(here[0], torch.tensor(n)), fn(here[1], torch.tensor(n)))
        torch.testing.assert_close(*here)


@pytest.mark.parametrize("other", [lambda n: 3, lambda n: (n * 2 - 3).item()])
def test_a_number_that_is_not_what_was_stated_is_told(other):
    def fn(x, n):
        count = n.item()
        torch._check(count == other(n))
        return x * count

    compiled = torchsmith.compile(fn, fullgraph=True, options=OPTIONS)
    x = torch.ones(2)
    assert compiled(x, torch.tensor(3)).tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        compiled(x, torch.tensor(5))
