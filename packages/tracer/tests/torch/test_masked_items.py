"""Elements that a mask has, stored where they came from: one graph, and eager's results."""

import pytest
import torch
from torchsmith_tracer import compile, explain


def copied(x, y, mask):
    x[mask] = y[mask]
    return x


def farthest(x, y, mask):
    nearest = torch.full_like(x, 0.1)
    for i in range(4):
        distance = (x - y * i) ** 2
        closer = distance < nearest
        nearest[closer] = distance[closer]
    return nearest


def in_place(x, y, mask):
    x[mask] += 1
    x[x > 0.5] *= 2
    x[mask] = y[mask] - x[mask] / 3 + 1.5
    return x


def rows(x, y, mask):
    some = mask[:, 0]
    x[some] = y[some] * 2
    x[some] = 1 - y[some]
    return x


def whole_numbers(x, y, mask):
    low, high = (x * 3).long(), (y * 3).long()
    low[(high > 0) & (low == high)] -= 1
    low[mask] = high[mask] * low[mask]
    return low


def scaled(x, y, mask):
    x[mask] = y[mask] * x[mask]
    return x


def by_itself(x, y, mask):
    some = y[mask]
    x[mask] = some
    return x, some


def kept(x, y, mask):
    table = {}
    table["some"] = y[mask]
    y[mask] = 0.0
    return table


def through_a_call(x, y, mask):
    x[mask] = y[mask] * x.mean()
    return x


def another_mask(x, y, mask):
    x[mask.clone()] = y[mask]
    return x


def wider(x, y, mask):
    x = x.double()
    x[mask] = y[mask]
    return x


def promoted(x, y, mask):
    x = x.long()
    x[mask] += 0.5
    return x


def divided(x, y, mask):
    zero = torch.where(mask, y, torch.zeros_like(y))
    x[mask] = x[mask] / zero[mask]
    return x


ONE_GRAPH = [copied, farthest, in_place, rows, whole_numbers]
OTHERS = [
    *(scaled, by_itself, kept, through_a_call, another_mask, wider, promoted, divided),
]


def outcome(fn, seed, grad, size):
    torch.manual_seed(seed)
    x, y = (torch.randn(*size, requires_grad=grad) for _ in range(2))
    try:
        result = fn(x.clone(), y.clone(), torch.rand(*size) > 0.4)
    except (RuntimeError, IndexError) as e:
        return [*str(e).encode()]
    made = torch.utils._pytree.tree_leaves(result)
    if grad and made[0].requires_grad:
        sum((t * t).sum() for t in made).backward()
    return result, x.grad, y.grad


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", ONE_GRAPH + OTHERS)
def test_results_gradients_and_errors(fn, grad):
    compiled = compile(fn)
    for seed, size in enumerate([(4, 3), (4, 3), (6, 5), (2, 2)]):
        expected, found = outcome(fn, seed, grad, size), outcome(compiled, seed, grad, size)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("fn", ONE_GRAPH)
def test_one_graph(fn):
    found = explain(fn)(torch.randn(4, 3), torch.randn(4, 3), torch.rand(4, 3) > 0.4)
    assert (found.graph_count, found.break_count) == (1, 0)
