"""``torch.cond``, loops and checkpointing inside compiled functions."""

import functools

import pytest
import torch
import torchsmith_tracer as tracer
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops import out_dtype, scan, while_loop
from torch._higher_order_ops.wrap import wrap
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

W = torch.linspace(1, 2, 4)


def branches(x, y):
    return torch.cond(x.sum() > 0, lambda a: (a * W, a + y), lambda a: (a - y, a * 3), (x,))


def nested(x, y):
    def inner(a):
        return torch.cond(a.max() > 2, lambda b: b.sin(), lambda b: b.cos() * y, (a,))

    return torch.cond(x.sum() > 0, inner, lambda a: a - 1, (x,))


def expected(program, x, y):
    """``torch.cond`` itself compiles; plain Python says the same."""

    def plain(pred, yes, no, operands):
        return yes(*operands) if pred else no(*operands)

    real, torch.cond = torch.cond, plain
    try:
        return program(x, y)
    finally:
        torch.cond = real


@pytest.mark.parametrize("program", [branches, nested])
def test_both_branches_are_in_one_graph(capture, program):
    compiled = tracer.compile(program, backend=capture, fullgraph=True)
    for sign in (1.0, -1.0, 3.0):
        x, y = torch.ones(4) * sign, torch.full((4,), 0.5)
        torch.testing.assert_close(compiled(x, y), expected(program, x, y))
    assert capture.n == 1


def test_gradients_flow_through_the_branch_that_ran():
    compiled = tracer.compile(lambda x, y: branches(x, y)[0].sum(), backend="eager", fullgraph=True)
    for sign in (1.0, -1.0):
        x = (torch.ones(4) * sign).requires_grad_()
        compiled(x, torch.ones(4)).backward()
        assert torch.equal(x.grad, W if sign > 0 else torch.ones(4))


def test_a_branch_that_stores_is_refused_with_the_reason():
    kept = []

    def program(x):
        return torch.cond(x.sum() > 0, lambda a: kept.append(1) or a + 1, lambda a: a - 1, (x,))

    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    with pytest.raises(tracer.errors.FullGraphError, match="TS-T056"):
        compiled(torch.ones(2))


def test_a_branch_may_change_what_it_made(capture):
    def yes(a):
        parts = [a]
        parts.append(a * 2)
        return torch.stack(parts).sum(0)

    def program(x):
        return torch.cond(x.sum() > 0, yes, lambda a: a - 1, (x,))

    compiled = tracer.compile(program, backend=capture, fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert torch.equal(compiled(-torch.ones(2)), torch.full((2,), -2.0))
    assert capture.n == 1


def test_a_loop_is_one_graph_for_any_number_of_rounds(capture):
    def program(i, x):
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * W), (i, x))

    compiled = tracer.compile(program, backend=capture, fullgraph=True)
    for start in (0, 3, 9):
        count, found = compiled(torch.tensor(start), torch.ones(4))
        rounds = max(0, 5 - start)
        assert count.item() == start + rounds
        torch.testing.assert_close(found, W**rounds)
    assert capture.n == 1


def test_a_loop_without_a_round_gives_new_tensors(capture):
    def program(i, x):
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * W), (i, x))

    i, x = torch.tensor(7), torch.ones(4)
    count, found = tracer.compile(program, backend=capture, fullgraph=True)(i, x)
    found.add_(count.add_(1))
    assert (i.item(), count.item()) == (7, 8) and torch.equal(x, torch.ones(4))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 4)
        self.runs = 0

    def forward(self, x):
        return torch.nn.functional.dropout(self.line(x).sin(), 0.3, training=True)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_is_in_the_graph_and_saves_as_little(capture, reentrant):
    block = Block()

    def program(x):
        return checkpoint(block, x, use_reentrant=reentrant) * 2

    def run(function):
        torch.manual_seed(3)
        block.zero_grad()
        x = torch.ones(2, 4, requires_grad=True)
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
            out = function(x)
        out.sum().backward()
        return out.detach(), x.grad, block.line.weight.grad, len(packed)

    compiled = tracer.compile(program, backend=capture, fullgraph=True)
    want, got = run(program), run(compiled)
    torch.testing.assert_close(got[:3], want[:3])
    assert got[3] == want[3]
    assert capture.n == 1


def escape_by_nonlocal(x, y):
    kept = None

    def yes(a):
        nonlocal kept
        kept = a + 1
        return a.sin()

    return torch.cond(x.sum() > 0, yes, lambda a: a.cos(), (x,)), kept


def escape_by_cell_of_an_inner_function(x, y):
    kept = y

    def yes(a):
        def keep():
            nonlocal kept
            kept = a * 2

        keep()
        return a.sin()

    return torch.cond(x.sum() > 0, yes, lambda a: a.cos(), (x,)), kept


def escape_by_list(x, y):
    kept = []

    def yes(a):
        kept.append(a + 1)
        return a.sin()

    return torch.cond(x.sum() > 0, yes, lambda a: a.cos(), (x,)), kept


def stays_inside(x, y):
    def yes(a):
        total = a

        def add(n):
            nonlocal total
            total = total + n

        add(y)
        return total

    return torch.cond(x.sum() > 0, yes, lambda a: a.cos(), (x,))


@pytest.mark.parametrize(
    "program", [escape_by_nonlocal, escape_by_cell_of_an_inner_function, escape_by_list]
)
def test_a_tensor_that_escapes_from_a_body_is_a_break(program):
    with pytest.raises(tracer.errors.FullGraphError, match="TS-T056"):
        tracer.compile(program, fullgraph=True)(torch.ones(4), torch.ones(4))


def test_cells_of_the_body_itself_may_change(capture):
    compiled = tracer.compile(stays_inside, backend=capture, fullgraph=True)
    for sign in (1.0, -1.0):
        x, y = torch.ones(4) * sign, torch.full((4,), 0.5)
        assert torch.equal(compiled(x, y), expected(stays_inside, x, y))
    assert capture.n == 1


ROWS = torch.arange(12.0).reshape(3, 4)


def in_place(x):
    return torch.cond(x.sum() > 0, lambda a: a.add_(1), lambda a: a.cos(), (x,))


def in_place_of_another(x):
    y = x * 2
    return torch.cond(x.sum() > 0, lambda a: a + y.add_(1), lambda a: a.cos(), (x,)), y


def the_operand(x):
    return torch.cond(x.sum() > 0, lambda a: a, lambda a: a.cos(), (x,))


def a_view(x):
    return torch.cond(x.sum() > 0, lambda a: a.view(-1), lambda a: a.cos().view(-1), (x,))


def one_twice(x):
    return torch.cond(x.sum() > 0, lambda a: (a.sin(),) * 2, lambda a: (a.cos(), a + 1), (x,))


def none(x):
    return torch.cond(x.sum() > 0, lambda a: (a.sin(), None), lambda a: (a.cos(), None), (x,))


def a_number(x):
    return torch.cond(x.sum() > 0, lambda a, n: a * n, lambda a, n: a - n, (x, 3))


@pytest.mark.parametrize(
    "program", [in_place, in_place_of_another, the_operand, a_view, one_twice, none, a_number]
)
def test_a_branch_that_the_operator_refuses_is_refused(program):
    x = ROWS.clone()
    with pytest.raises(tracer.errors.FullGraphError):
        tracer.compile(program, backend="eager", fullgraph=True)(x)
    assert torch.equal(x, ROWS)


def plain_map(func, rows, *args):
    return torch.stack([func(row, *args) for row in rows])


def plain_scan(func, state, rows, *, dim=0, reverse=False):
    given = []
    order = rows.unbind(dim)
    for row in reversed(order) if reverse else order:
        state, out = func(state, row)
        given.append(out)
    if reverse:
        given.reverse()
    return state, torch.stack(given, dim)


LOOPS = {
    "map": (lambda each, x: each(lambda a, w: (a * w).cumsum(0), x, W), map_rows, plain_map),
    "map free": (lambda each, x: each(lambda a: a * x[0] + W, x), map_rows, plain_map),
    "scan": (lambda each, x: each(lambda c, a: (c + a, c * a), W, x), scan, plain_scan),
    "scan free": (lambda each, x: each(lambda c, a: (c * W + a, c + x[0]), W, x), scan, plain_scan),
    "scan back": (
        lambda each, x: each(lambda c, a: (c + a, c * a), W[:3] * 1, x, dim=1, reverse=True),
        scan,
        plain_scan,
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_over_rows_is_one_graph(capture, name):
    program, real, plain = LOOPS[name]
    compiled = tracer.compile(lambda x: program(real, x), backend=capture, fullgraph=True)
    sides = []
    for run in (compiled, lambda x: program(plain, x)):
        x = ROWS.clone().requires_grad_()
        out = run(x)
        sum(t.sum() for t in (out if isinstance(out, tuple) else (out,))).backward()
        sides.append((out, x.grad))
    torch.testing.assert_close(*sides)
    assert capture.n == 1


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_over_any_number_of_rows(name):
    program, real, plain = LOOPS[name]
    compiled = tracer.compile(lambda x: program(real, x), backend="eager", fullgraph=True)
    for rows in (3, 2, 4):
        x = torch.linspace(-1, 1, rows * 4).view(rows, 4)
        if name == "scan back":
            x = x.T[:3]
        torch.testing.assert_close(compiled(x), program(plain, x))


def test_errors_in_a_body_are_not_printed(capfd):
    """The program may catch them."""

    def drawn(x):
        try:
            return torch.vmap(lambda row: row + torch.rand(4))(x)
        except RuntimeError as e:
            return str(e)

    def indexed(x):
        return checkpoint(lambda a, i: a[i], x, torch.tensor([len(x)]), use_reentrant=False)

    assert tracer.compile(drawn, backend="eager")(ROWS) == drawn(ROWS)
    with pytest.raises(IndexError):
        tracer.compile(indexed, backend="eager")(ROWS.clone().requires_grad_())
    assert capfd.readouterr() == ("", "")


def test_trees_are_carried_and_scanned(capture):
    def step(state, rows):
        return {"s": state["s"] + rows[0]}, [state["s"] * rows[1], rows[0].sum()]

    compiled = tracer.compile(
        lambda x: scan(step, {"s": W}, (x, x + 1)), backend=capture, fullgraph=True
    )
    state, (products, sums) = compiled(ROWS)
    assert torch.equal(state["s"], W + ROWS.sum(0))
    assert torch.equal(sums, ROWS.sum(1))
    assert products.shape == (3, 4)
    assert capture.n == 1


def keep_products(ctx, op, *args, **kwargs):
    saved = op is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


SELECTIVE = functools.partial(create_selective_checkpoint_contexts, keep_products)


def nest_of_arguments(a, number, word, nest):
    return (a * number, nest["y"][0] * 2, word, None)


def with_keywords(a, scale=1.0, shift=None):
    return a * scale + shift


CHECKPOINTED = {
    "nests": lambda x: checkpoint(
        nest_of_arguments, x, 3, "word", {"y": [x * 2]}, use_reentrant=False
    ),
    "reentrant": lambda x: checkpoint(nest_of_arguments, x, 3, "w", {"y": [x]}, use_reentrant=True),
    "keywords": lambda x: checkpoint(with_keywords, x, scale=2.0, shift=x, use_reentrant=False),
    "integers": lambda x: checkpoint(lambda a: (a.sin(), a.argmax(), 5), x, use_reentrant=False),
    "no check": lambda x: checkpoint(torch.sin, x, use_reentrant=False, determinism_check="none"),
    "selective": lambda x: checkpoint(
        lambda a: (a @ a.t()).sin().exp(), x, use_reentrant=False, context_fn=SELECTIVE
    ),
    "selective, made inside": lambda x: checkpoint(
        lambda a: (a @ a.t()).sin(),
        x,
        use_reentrant=False,
        context_fn=functools.partial(create_selective_checkpoint_contexts, keep_products),
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpointing_takes_what_torch_takes(check, name):
    check(CHECKPOINTED[name], ROWS.clone().requires_grad_(), graphs=1, fullgraph=True)


def test_another_policy_recompiles(capture):
    def contexts():
        return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])

    globals()["CONTEXTS"] = SELECTIVE
    compiled = tracer.compile(
        lambda x: checkpoint(torch.exp, x, use_reentrant=False, context_fn=CONTEXTS),  # noqa: F821
        backend=capture,
        fullgraph=True,
    )
    x = ROWS.clone().requires_grad_()
    for policy in (SELECTIVE, SELECTIVE, contexts):
        globals()["CONTEXTS"] = policy
        assert torch.equal(compiled(x), x.exp())
    assert capture.n == 2


def test_a_wrapped_call_is_the_call_itself(capture):
    kept = []

    def program(x):
        y = x * 2
        return wrap(lambda a, w=None: kept.append(1) or (a * y, {"w": w}), x, w=y)

    out, named = tracer.compile(program, backend=capture, fullgraph=True)(ROWS)
    assert torch.equal(out, ROWS * ROWS * 2) and torch.equal(named["w"], ROWS * 2)
    assert kept == [1] and capture.n == 1


def test_another_operator_of_functions_is_one_break(agree):
    def program(x):
        return out_dtype(torch.ops.aten.mm.default, torch.int32, x, x) + 1

    log = agree(program, torch.ones(2, 2, dtype=torch.int8))
    assert [b.name for b in log.breaks] == ["opaque-call"]
    assert len(log.frames) == 2


@pytest.mark.parametrize(
    "context", [lambda: torch.autocast("cpu", torch.bfloat16), torch.inference_mode, torch.no_grad]
)
def test_a_block_that_is_taken_back_entered_and_left_contexts(context):
    """What a checkpointed function changes makes it run natively, contexts and all."""
    seen = []

    def inner(x):
        with context():
            y = x @ x
        seen.append(torch.is_autocast_enabled("cpu"))
        return x.sin() + y.detach()

    def fn(x):
        return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)

    x = torch.ones(2, 2, requires_grad=True)
    got = tracer.compile(fn, backend="eager")(x)
    assert torch.equal(got, fn(x)) and seen == [False, False]
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
