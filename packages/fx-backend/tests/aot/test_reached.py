"""What eager's backward pass comes to and saves, where a compiled graph is one node to autograd."""

import pytest
import torch
import torch.nn.functional as F
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.aot import tangents
from torchsmith_fx_backend._src.aot.tangents import will_run
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)
pytestmark = pytest.mark.usefixtures("reference_machine")


def compiled(fn, *examples):
    return compile_training(torch.fx.symbolic_trace(fn), examples, SETTINGS)


def leaf(*size):
    return torch.rand(*size, generator=torch.Generator().manual_seed(1)).add_(1).requires_grad_()


def outcome(call, *args):
    try:
        return call(*args)
    except RuntimeError as error:
        for sign in ("modified by an inplace operation", "second time"):
            if sign in str(error):
                return sign
        raise


# ------------------------------------------------------------------------- operators on lists

LISTS = {  # those that save both lists, one, the results, what they only need the type of, nothing
    "neg": lambda x, y: torch._foreach_neg([x, y]),
    "mul": lambda x, y: torch._foreach_mul([x, y], [y, x]),
    "the same twice": lambda x, y: torch._foreach_mul([x, x], [x, y]),
    "maximum": lambda x, y: torch._foreach_maximum([x, y], 1.5),
    "exp": lambda x, y: torch._foreach_exp([x, y]),
    "sub": lambda x, y: torch._foreach_sub([x, x], [x, y], alpha=2),
    "addcmul": lambda x, y: torch._foreach_addcmul([x, y], [y, y], [x, x], 0.5),
    "by a number": lambda x, y: torch._foreach_mul([x, y], 2.0),
}
VICTIMS = ("no", "x", "y", "result 0", "result 1")


def after_a_write(fn, victim, x, y):
    results = fn(x, y)
    if victim != "no":
        with torch.no_grad():
            {"x": x, "y": y, "result 0": results[0], "result 1": results[1]}[victim].add_(1)
    return [g is not None for g in torch.autograd.grad(results[0].sum(), [x, y], allow_unused=True)]


def twice(fn, x, y):
    result = fn(x, y)[0].sum()
    return [torch.autograd.grad(result, x)[0].sum().item() for _ in range(2)]


@pytest.mark.parametrize("name", LISTS)
def test_what_an_operator_saves_of_lists_is_guarded(name):
    fn = lambda x, y: [(found := LISTS[name](x, y))[0], found[1]]
    run = compiled(fn, leaf(3), leaf(3))
    for victim in VICTIMS:
        wanted = outcome(after_a_write, fn, victim, leaf(3), leaf(3))
        assert outcome(after_a_write, run, victim, leaf(3), leaf(3)) == wanted, victim
    wanted = outcome(twice, fn, leaf(3), leaf(3))
    assert outcome(twice, run, leaf(3), leaf(3)) == wanted


def test_some_lists_are_saved_and_some_are_not():
    found = {name: outcome(after_a_write, fn, "x", leaf(3), leaf(3)) for name, fn in LISTS.items()}
    assert isinstance(found["mul"], str) and isinstance(found["sub"], str)
    assert found["neg"] == [True, False]


@pytest.mark.parametrize("victim", VICTIMS)
def test_what_is_saved_of_parts_in_a_list_is_guarded(victim):
    def fn(x, y):
        whole = x * 1
        torch._foreach_mul_([whole[0], whole[1]], [y, y.detach() + 1])
        return whole, y * 2

    run = compiled(fn, leaf(2, 3), leaf(3))
    wanted = outcome(after_a_write, fn, victim, leaf(2, 3), leaf(3))
    assert outcome(after_a_write, run, victim, leaf(2, 3), leaf(3)) == wanted


def test_a_write_into_a_list_counts():
    def fn(x, y):
        product = x * y
        torch._foreach_add_([x], 1)
        return (product,)

    with pytest.raises(Exception, match="modified by an inplace operation"):
        compiled(fn, leaf(3) * 1, leaf(3))


# ------------------------------------------------------------------------- leaves and hooks


def heard(fn, differentiate, kinds=("leaf", "leaf")):
    """Gradients of two leaves after a backward pass, and what their hooks heard, in order."""
    leaves, found = [leaf(2, 3), leaf(2, 3)], []
    for number, x in enumerate(leaves):
        x.register_hook(lambda g, n=number: found.append((n, g is None)))
        x.register_post_accumulate_grad_hook(lambda x, n=number: found.append((n, "after")))
    args = [x if kind == "leaf" else x * 1 for x, kind in zip(leaves, kinds)]
    results = fn(*args)
    results[differentiate].sum().backward()
    return found, [x.grad is not None for x in leaves]


def unused(x, y):
    return (x.exp(),)


def linear(x, y):
    return x * 2, y * 3


def one_writes(x, y):
    y.transpose(0, 1).tanh_()
    return x * 2, y


def undefined(x, y):
    return torch.linalg.vector_norm(x, 0, -1), y * 2


def undefined_after_a_write(x, y):
    y.mul_(2)
    return torch.linalg.vector_norm(y, 0, -1), x * 2


@pytest.mark.parametrize("result", (0, 1))
@pytest.mark.parametrize("fn", (unused, linear, one_writes, undefined, undefined_after_a_write))
def test_hooks_hear_of_what_a_backward_pass_comes_to(fn, result):
    if fn is unused and result:
        return
    kinds = ("leaf", "inner" if fn in (one_writes, undefined_after_a_write) else "leaf")
    run = compiled(fn, leaf(2, 3), leaf(2, 3) if kinds[1] == "leaf" else leaf(2, 3) * 1)
    assert heard(run, result, kinds) == heard(fn, result, kinds)


@pytest.mark.parametrize("places", ((0, 1), (1, 0)))
def test_independent_results_are_taken_in_the_order_of_their_making(places):
    def fn(x, y):
        made = x.exp(), y.exp()
        return made[places[0]], made[places[1]]

    def order(fn):
        leaves, found = [leaf(3), leaf(3)], []
        for number, x in enumerate(leaves):
            x.register_hook(lambda g, n=number: found.append(n))
        torch.autograd.backward(fn(*leaves), [torch.ones(3)] * 2)
        return found

    run = compiled(fn, leaf(3), leaf(3))
    assert order(run) == order(fn)


def test_a_write_is_no_error_for_results_that_do_not_need_it():
    def fn(x, y):
        y.tanh_()
        return x * 2, y

    def late(fn):
        x, y = leaf(3), leaf(3)
        given = y * 1
        results = fn(x, given)
        with torch.no_grad():
            given.add_(1)
        results[0].sum().backward()
        return x.grad

    torch.testing.assert_close(late(compiled(fn, leaf(3), leaf(3) * 1)), late(fn))


@pytest.mark.parametrize("extreme", (torch.amax, lambda x, dim: x.topk(1, dim)[0]))
@pytest.mark.parametrize("chosen", (0, 1))
def test_a_zero_gradient_reads_what_was_made_inside(extreme, chosen):
    def fn(x):
        most = extreme(x, 0)
        return most.sign() * x, most.fmod(2), most.sign()

    x = leaf(4, 4)
    for call in (compiled(fn, x), fn):
        grads = [torch.autograd.grad(call(x)[i].sum(), x)[0] for i in (chosen, 2)]
        assert all(torch.isfinite(g).all() for g in grads)
    torch.testing.assert_close(
        torch.autograd.grad(compiled(fn, x)(x)[chosen].sum(), x),
        torch.autograd.grad(fn(x)[chosen].sum(), x),
    )


# ------------------------------------------------------------------------- layouts and views


@pytest.mark.parametrize(
    "tangent", (torch.ones(3, 4), torch.ones(4, 3).t(), torch.ones(()).expand(3, 4))
)
def test_a_gradient_of_a_written_input_has_no_zeros_added(tangent):
    def fn(x):
        x.index_add_(0, torch.tensor([1, 0]), x[[1, 0]])
        return (x,)

    def strides(fn):
        source = leaf(3, 4)
        x = source.clone()
        return [g.stride() for g in torch.autograd.grad(fn(x), [source, x], tangent)]

    assert strides(compiled(fn, leaf(3, 4).clone())) == strides(fn)


@pytest.mark.parametrize("kept", ("retained", "hooked", "a view"))
def test_a_written_input_keeps_what_hangs_on_it(kept):
    def fn(x):
        x.mul_(3)
        return (x + 1,)

    def play(fn):
        source, found = leaf(2, 3), []
        x = source[0:] if kept == "a view" else source * 2
        x = x * 1 if kept != "a view" else (source * 2)[1]
        if kept == "retained":
            x.retain_grad()
        if kept == "hooked":
            x.register_hook(lambda g: found.append(g.tolist()))
        fn(x)[0].sum().backward()
        return (
            found,
            source.grad.tolist(),
            x.grad.tolist() if kept == "retained" else None,
            x._version,
        )

    example = leaf(2, 3)[1] * 1 if kept == "a view" else leaf(2, 3) * 1
    assert play(compiled(fn, example)) == play(fn)


def test_gradients_come_by_an_input_that_is_returned():
    def fn(x):
        return x, x * 2

    def play(fn):
        source, found = leaf(2, 3), []
        x = source * 1
        x.register_hook(lambda g: found.append(g.tolist()))
        x.retain_grad()
        fn(x)[1].sum().backward()
        return found, source.grad.tolist(), x.grad.tolist()

    assert play(compiled(fn, leaf(2, 3) * 1)) == play(fn)


@pytest.mark.parametrize("inner", (False, True))
def test_views_of_a_written_view_have_the_history_of_its_base(inner):
    def fn(x):
        view = x.select(0, 1)
        view[0].logical_not_()
        return (view,)

    def gradient(fn):
        x = torch.ones(4, 3)[1:].requires_grad_() if not inner else (leaf(4, 3) * 1)[1:]
        found = torch.autograd.grad(fn(x)[0].sum(), x, allow_unused=True)[0]
        return None if found is None else found.tolist()

    example = torch.ones(3, 3).requires_grad_()
    assert gradient(compiled(fn, example if not inner else example * 1)) == gradient(fn) is None


@pytest.mark.parametrize("fn", (F.softmax, F.log_softmax))
def test_gradients_of_softmax_are_row_major(fn):
    program = lambda x: (fn(x, 0), x * 2)
    x = leaf(3, 4)
    run = compiled(program, x)
    for one in (torch.ones(3, 4), torch.randn(4, 3).t(), torch.ones(()).expand(3, 4)):
        for other in (torch.ones(3, 4), torch.randn(4, 3).t()):
            mine, true = (torch.autograd.grad(f(x), x, (one, other))[0] for f in (run, program))
            assert mine.stride() == true.stride()
            torch.testing.assert_close(mine, true)


@pytest.mark.parametrize("differentiable", (False, True))
def test_an_affine_grid_is_no_view(differentiable):
    def fn(theta):
        return (F.affine_grid(theta, (2, 1, 3, 2), align_corners=False),)

    theta = torch.rand(2, 2, 3).requires_grad_(differentiable)
    mine, true = compiled(fn, theta)(theta)[0], fn(theta)[0]
    assert (
        (mine._is_view(), mine.stride())
        == (true._is_view(), true.stride())
        == (False, (12, 4, 2, 1))
    )


@pytest.mark.parametrize("fn", (F.elu, F.selu, F.celu, F.hardswish))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_gradients_of_vectors_of_nan_are_nan(fn, dtype):
    program = lambda x: (fn(x),)
    x = torch.full((256,), torch.nan, dtype=dtype, requires_grad=True)
    x.data[::2] = torch.linspace(-5, 5, 128, dtype=dtype)
    mine, true = (torch.autograd.grad(f(x)[0].sum(), x)[0] for f in (compiled(program, x), program))
    torch.testing.assert_close(mine, true, equal_nan=True)
    assert torch.isnan(mine).sum() == 128


def test_torch_is_not_asked_again_about_leaves_while_all_gradients_are_wanted(monkeypatch):
    """It tells of a leaf by an exception, which takes longer than a small gradient."""
    program = lambda x, y: (x.sin() * y,)
    run, asked = compiled(program, leaf(3), leaf(3)), []
    monkeypatch.setattr(tangents, "will_run", lambda n: asked.append(n) or will_run(n))
    for count in range(4 * tangents._QUIET):
        given = leaf(3), leaf(3)
        wanted = given if count < 2 * tangents._QUIET else given[:1]
        mine, true = (torch.autograd.grad(f(*given)[0].sum(), wanted) for f in (run, program))
        torch.testing.assert_close(mine, true)
        if count == 2 * tangents._QUIET - 1:
            assert len(asked) <= 4
    assert len(asked) > 4, "a pass that wants fewer is found out in the end"
