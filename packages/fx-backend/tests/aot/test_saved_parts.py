"""What autograd saves of a write into a part of a tensor may not be written before its backward
pass, as in eager mode; anything else may. Programs are called several times, written and not."""

import pytest
import torch
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)
pytestmark = pytest.mark.usefixtures("reference_machine")

PARTS = {
    "select": lambda b: b[1],
    "slice": lambda b: b[:, 1:3],
    "transposed": lambda b: b.t(),
    "all": lambda b: b.view(16),
    "steps": lambda b: b[::2].t()[1],
}
WRITES = {  # those that save their result, their operand, both, an index, nothing
    "relu_": lambda v, y: v.relu_(),
    "sigmoid_": lambda v, y: v.sigmoid_(),
    "sqrt_": lambda v, y: v.abs_().add_(1).sqrt_(),
    "mul_": lambda v, y: v.mul_(y),
    "div_": lambda v, y: v.div_(y + 9),
    "copy_": lambda v, y: v.copy_(y.expand_as(v)),
    "addcmul_": lambda v, y: v.addcmul_(y, y),
    "masked_fill_": lambda v, y: v.masked_fill_(v.detach() > 0, 2.0),
    "neg_": lambda v, y: v.neg_(),
}


def program(part, write):
    def fn(x, y):
        b = x * 2
        v = PARTS[part](b)
        WRITES[write](v, y)
        return b, v, y * 3

    return fn


def outcome(fn, victim):
    """Whether the backward pass after a write to ``victim`` (a result's or argument's number)
    raises, else the gradients."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 4, generator=generator).requires_grad_()
    w = torch.randn((), generator=generator).requires_grad_()
    y = w.clone()
    results = fn(x, y)
    if victim is not None:
        with torch.no_grad():
            (*results, y)[victim].add_(1)
    loss = (results[0] * torch.linspace(0, 1, 16).view(4, 4)).sum() + results[2]
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return "raises"
    return x.grad, w.grad


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("part", PARTS)
def test_what_is_saved_of_a_part_is_guarded_by_its_version(part, write):
    fn = program(part, write)
    examples = torch.randn(4, 4, requires_grad=True), torch.randn((), requires_grad=True).clone()
    compiled = compile_training(torch.fx.symbolic_trace(fn), examples, SETTINGS)
    for victim in (None, 0, 1, 2, 3, None):
        wanted, found = outcome(fn, victim), outcome(compiled, victim)
        assert (wanted == "raises") == (found == "raises"), victim
        if wanted != "raises":
            torch.testing.assert_close(found, wanted)


def test_some_of_these_writes_are_refused_and_some_are_not():
    found = {w: outcome(program("select", w), 0) == "raises" for w in WRITES}
    assert found["relu_"] and found["sigmoid_"] and not found["neg_"] and not found["mul_"]
    assert outcome(program("select", "mul_"), 3) == "raises"


def test_columns_of_a_permuted_image_are_row_major():
    def fn(x):
        columns = torch.nn.functional.unfold(x, 1, stride=2)
        return columns.reshape(-1, 4), columns

    for like in (torch.randn(4, 3, 3, 3).permute(3, 2, 1, 0), torch.randn(3, 3, 3, 4)):
        x = like.clone(memory_format=torch.preserve_format).requires_grad_()
        compiled = compile_training(torch.fx.symbolic_trace(fn), [x], SETTINGS)
        for found, wanted in zip(compiled(x), fn(x), strict=True):
            assert (found.stride(), found._is_view()) == (wanted.stride(), wanted._is_view())
            pair = [torch.autograd.grad(t.square().sum(), x)[0] for t in (found, wanted)]
            assert torch.equal(*pair) and pair[0].stride() == pair[1].stride()


@pytest.mark.parametrize("mode", ["reflect", "replicate", "constant"])
@pytest.mark.parametrize("other", [torch.tanh, torch.exp, torch.neg])
def test_one_of_two_results_takes_tangents_of_one_value(mode, other):
    def fn(x, y):
        return torch.nn.functional.pad(x, [0, 1, 0, 0], mode=mode), other(y)

    x, y = torch.randn(2, 4, 4).requires_grad_(), torch.randn(4, 4).requires_grad_()
    compiled = compile_training(torch.fx.symbolic_trace(fn), [x, y], SETTINGS)
    for first in (0, 1, 0):
        for run in (compiled, fn):
            x.grad = y.grad = None
            results = run(x, y)
            for number in (first, 1 - first):  # one after the other, in either order
                one = torch.full((), 0.5).expand(results[number].shape)
                results[number].backward(one)
            if run is compiled:
                found = x.grad, y.grad
        torch.testing.assert_close(found, (x.grad, y.grad))


ZERO = {  # results whose gradients are zeros, though eager's nodes save values made inside
    "kthvalue": lambda x: x.kthvalue(2, 0)[0].ceil(),
    "max": lambda x: x.max(1)[0].round(),
    "gather": lambda x: x.gather(0, x.argsort(0)).sign(),
    "nothing": lambda x: x.floor(),
}


@pytest.mark.parametrize("other", [torch.clone, torch.exp])
@pytest.mark.parametrize("name", ZERO)
def test_results_with_gradients_of_zeros_have_what_their_half_reads(name, other):
    def fn(x):
        return ZERO[name](x), other(x)

    x = torch.randn(4, 3).requires_grad_()
    compiled = compile_training(torch.fx.symbolic_trace(fn), [x], SETTINGS)
    for order in ((0,), (0, 1), (1, 0), (1,), (0, 0), (1, 1)):
        told = []
        for run in (compiled, fn):
            x.grad, found, results = None, "", run(x)
            try:
                for number in order:
                    results[number].sum().backward()
            except RuntimeError as error:
                found = str(error)[:40]
            told.append((found, x.grad))
        assert told[0][0] == told[1][0], order
        torch.testing.assert_close(told[0][1], told[1][1])


DETACHED = {
    "a result": lambda x: (x.exp().detach(), x * 2),
    "a view of one": lambda x: (x.exp().t().detach()[1:], x * 2),
    "before its history": lambda x: (lambda y: (y.detach(), x * 2, y))(x.exp()),
    "alone": lambda x: (x.exp().detach(), x.sin().detach()),
}


@pytest.mark.parametrize("name", DETACHED)
def test_what_is_detached_saves_nothing(name):
    program = DETACHED[name]
    run = compile_training(program, [torch.ones(3, 4).requires_grad_()], SETTINGS)
    for written in (None, 0, "x"):
        sides = []
        for each in (program, run):
            x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
            results = each(x)
            with torch.no_grad():
                if written is not None:
                    (x if written == "x" else results[0]).add_(1)
            roots = [r.sum() for r in results if r.requires_grad]
            try:
                grads = torch.autograd.grad(roots, x) if roots else ()
            except RuntimeError as error:
                grads = (torch.tensor("modified by an inplace" in str(error)),)
            sides.append([*(r.detach() for r in results), *grads])
        torch.testing.assert_close(*sides)
    wanted = {"before its history": (0, 1), "alone": ()}.get(name, (1,))
    assert run.training.joint.differentiable == wanted
