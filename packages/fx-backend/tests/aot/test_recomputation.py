"""Parts of a program that run again in the backward pass, and the random numbers that they draw."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)


pytestmark = pytest.mark.usefixtures("reference_machine")


def leaf(*size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator).requires_grad_()


def drop(x, w):
    return F.dropout(x @ w, 0.4, True).sin()


def noise(x, w):
    y = torch.rand_like(x) * x
    return torch.normal(0.0, 1.0, (4, 4)) * y + torch.empty_like(w).uniform_() * w


def nested(x, w):
    return checkpoint(drop, F.dropout(x, 0.2, True), w, use_reentrant=False) * x


PARTS = {"dropout": drop, "noise": noise, "nested": nested}


def twice(part, use_reentrant=False, **options):
    """The part two times, checkpointed, with a draw between."""
    again = partial(checkpoint, part, use_reentrant=use_reentrant, **options)

    def program(x, w):
        y = again(x, w)
        y = y + torch.rand(4)
        return (again(y, w), y)

    return program


def gradients(run, seed):
    torch.manual_seed(seed)
    inputs = [leaf(4, 4), leaf(4, 4, seed=1)]
    outputs = run(*inputs)
    loss = sum((o.double() * o.double().cos()).sum() for o in outputs)
    before = torch.random.get_rng_state()
    loss.backward()
    assert torch.equal(before, torch.random.get_rng_state())
    return [*(o.detach() for o in outputs), *(i.grad for i in inputs), torch.rand(1)]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_draws_are_eagers_in_both_runs(name, reentrant):
    program = twice(PARTS[name], reentrant)
    state = torch.random.get_rng_state()
    run = compile_training(program, [leaf(4, 4), leaf(4, 4)], SETTINGS.with_options(rng="eager"))
    assert torch.equal(state, torch.random.get_rng_state())
    for seed in (3, 4):
        for mine, true in zip(gradients(run, seed), gradients(program, seed), strict=True):
            torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-5)


def test_keyed_draws_are_one_in_both_runs():
    def program(x):
        return (checkpoint(lambda y: F.dropout(y, 0.5, True) * y, x, use_reentrant=False),)

    run = compile_training(program, [leaf(200)], SETTINGS)
    x = leaf(200)
    (y,) = run(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y.detach() != 0) * 4 * x.detach())
    assert 60 < int((y == 0).sum()) < 140


def test_without_a_kept_state_each_run_draws():
    program = twice(drop, preserve_rng_state=False)
    run = compile_training(program, [leaf(4, 4), leaf(4, 4)], SETTINGS.with_options(rng="eager"))
    sides = []
    for f in (run, program):
        torch.manual_seed(0)
        x, w = leaf(4, 4), leaf(4, 4, seed=1)
        f(x, w)[0].sum().backward()
        sides.append((x.grad, w.grad, torch.rand(1)))
    for mine, true in zip(*sides):
        torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-5)


MOVED = {
    "dropout": lambda x: F.dropout(x.transpose(0, 2), 0.3, True),
    "alpha dropout": lambda x: F.alpha_dropout(x.transpose(1, 2), 0.3, True),
    "rand_like": lambda x: torch.rand_like(x.permute(2, 0, 1)) * 1,
    "channels last": lambda x: F.dropout(x[None].to(memory_format=torch.channels_last), 0.3, True),
    "a part": lambda x: (x.transpose(0, 2) * 2)[:, ::2].bernoulli_(0.3),
    **{
        name: partial(lambda how, x: getattr(torch.zeros_like(x.transpose(0, 1)), how)(), name)
        for name in ("uniform_", "normal_", "exponential_", "cauchy_", "bernoulli_")
    },
}


@pytest.mark.parametrize("name", MOVED)
def test_numbers_lie_in_memory_as_eager_draws_them(name):
    fn = lambda x: (MOVED[name](x) * x.sum(),)  # noqa: E731
    run = compile_training(fn, [leaf(2, 3, 20)], SETTINGS.with_options(rng="eager"))
    sides = []
    for f in (run, fn):
        torch.manual_seed(5)
        x = leaf(2, 3, 20)
        (y,) = f(x)
        y.sum().backward()
        sides.append((y.detach(), x.grad, torch.rand(1)))
    for mine, true in zip(*sides):
        torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-5, equal_nan=True)
        assert mine.stride() == true.stride()


@pytest.mark.parametrize(("rng", "budget"), [("keyed", 0.0), ("keyed", 0.5), ("eager", 0.0)])
def test_masks_by_key_are_drawn_again_where_nothing_may_be_held(rng, budget):
    """Without a budget only the seeds are saved; what is drawn again is what was drawn."""

    def program(x):
        h = F.dropout(x, 0.4, True).sin()
        return (F.dropout(h, 0.2, True) * 2,)

    x = leaf(64, 8)
    run = compile_training(program, [x], SETTINGS.with_options(rng=rng, memory_budget=budget))
    again = rng == "keyed" and budget == 0
    for seed in (1, 2):
        torch.manual_seed(seed)
        (y,) = run(x)
        saved = y.grad_fn.saved_tensors
        masks = [t for t in saved if t.dtype is torch.bool or t.unique().numel() == 2]
        assert bool(masks) != again
        torch.rand(5)  # what is drawn between the passes changes nothing
        (grad,) = torch.autograd.grad(y.sum(), x)
        dropped = y.detach() == 0
        assert 0.4 < dropped.float().mean() < 0.65
        scaled = x.detach() / 0.6
        true = torch.where(dropped, 0.0, scaled.cos() / 0.6 * 2 / 0.8)
        torch.testing.assert_close(grad, true, rtol=1e-4, atol=1e-5)


def test_a_selective_checkpoint_is_differentiated_for_any_tangents():
    """Its tensors can be asked for once; halves for other tangents come from the same recording."""
    contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])

    def part(x, w):
        y = (x @ w).sin()
        return y.exp(), y * 2

    def program(x, w):
        return checkpoint(part, x, w, use_reentrant=False, context_fn=contexts)

    run = compile_training(program, [leaf(4, 4), leaf(4, 4)], SETTINGS)
    full, turned = torch.ones(4, 4), torch.rand(4, 4).t()
    tangents = [(full[:1].expand(4, 4), full), (turned, None), (None, turned), (full, full)] * 2
    for one, other in tangents:
        for asked in ((0, 1), (0,), (1,)):
            sides = []
            for f in (run, program):
                given = leaf(4, 4), leaf(4, 4, seed=1)
                pairs = [(r, t) for r, t in zip(f(*given), (one, other)) if t is not None]
                results, own = zip(*pairs)
                sides.append(torch.autograd.grad(results, [given[i] for i in asked], own))
            torch.testing.assert_close(*sides, rtol=1e-4, atol=1e-5)


def test_tensors_that_a_program_writes_out_are_not_saved():
    """They are constants of both halves: nothing copies them, and nothing holds a copy."""

    def program(x, w):
        bits = torch.tensor([1, 0, 1, 1])
        return (torch.where(bits.bool(), w, 1 - w).prod(0) * x * bits,)

    compiled = compile_training(program, [leaf(4, 4), leaf(4, 4)], SETTINGS)
    assert all("lift_fresh" not in each.name for each in compiled.training.saved)
    assert "lift_fresh" not in compiled.source
    for seed in (3, 4):
        for mine, true in zip(gradients(compiled, seed), gradients(program, seed), strict=True):
            torch.testing.assert_close(mine, true)
