"""Graphs are compiled around hooks of Python's, settings of torch, branches and loops on data, and
nodes that cannot be compiled."""

import warnings

import pytest
import torch
import torchsmith
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.modules import module
from torch.utils.checkpoint import checkpoint
from torchsmith_fx_backend._src import native_nodes


def retained(m, x):
    y = m(x).sin()
    y.retain_grad()
    return y, (y.exp() * x.sum()).sum()


def under_settings(m, x):
    y = m(x).sin()
    torch.set_default_dtype(torch.float64)
    with torch.backends.mkldnn.flags(enabled=False):
        z = m[0](x.detach()).exp()
    with torch.no_grad():
        torch.use_deterministic_algorithms(True, warn_only=True)
        w = (y * 2).tanh() + torch.ones(())
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float32)
    return y, z.sum() + y.sum() + w.sum()


def hooked(m, x):
    y = m(x.tanh()) * 2
    return y, y.cos().sum()


def checkpointed(m, x):
    y = checkpoint(lambda t: hooked(m, t)[0], x, use_reentrant=False)
    return y, y.exp().sum()


def parts_made(monkeypatch):
    """The parts that are to be compiled, as they are made."""
    parts = []
    known = native_nodes._Later.__init__
    monkeypatch.setattr(
        native_nodes._Later, "__init__", lambda *args: (parts.append(args[0]), known(*args))[1]
    )
    return parts


@pytest.mark.parametrize("fn", [retained, under_settings, hooked, checkpointed])
@pytest.mark.parametrize("rows", [(3, 3, 3), (3, 4, 5, 3)])
@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_values_gradients_and_hooks_are_eagers(fn, rows, monkeypatch):
    parts = parts_made(monkeypatch)

    def train(run):
        torch.manual_seed(0)
        m, log, seen = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), [], []
        if fn is not retained:
            m[2].register_full_backward_hook(lambda mod, gi, go: log.append((*gi, *go)))
        for n in rows:
            x = torch.randn(n, 4, requires_grad=True)
            y, z = run(m, x)
            z.backward()
            seen += [y, z, x.grad, *(p.grad for p in m.parameters())]
            seen += [y.grad] if y.retains_grad else []
            m.zero_grad()
        return seen, log

    torch.testing.assert_close(train(torchsmith.compile(fn)), train(fn))
    assert parts


def branched(m, x):
    h = m(x).tanh() * 2
    h = torch.cond(h.sum() > 0, lambda t: (t.sin() * 2).relu(), lambda t: (t.cos() + 1) * 3, (h,))
    return h, h.softmax(-1).square().sum()


def branched_within(m, x):
    def positive(t):
        return torch.cond(t.max() > 1, lambda u: u.exp() * 2, lambda u: (u * 3).tanh(), (t,)) + 1

    h = torch.cond(x.sum() > 0, positive, lambda t: m(t).sigmoid() * 2, (x,))
    return h, (h * x).sum()


def repeated(m, x):
    i, h = while_loop(
        lambda i, t: (i < 3) & (t.sum() < 100),
        lambda i, t: (i + 1, (t * 1.1).sin() + 0.1),
        (torch.tensor(0), m(x).tanh()),
    )
    return h * i, (h.exp() * x).sum()


def retained_in_chunks(m, x):
    y = m(x).sin().view(-1, 2, 4)
    y.retain_grad()
    y = (y.exp() * 2).sum(1)
    return y, y.square().sum()


def branched_in_chunks(m, x):
    h = m(x).tanh().view(-1, 2, 4)
    h = torch.cond(h.sum() > 0, lambda t: (t.sin() * 2).relu(), lambda t: (t.cos() + 1) * 3, (h,))
    h = h.flatten(1) * 2
    return h, h.softmax(-1).square().sum()


@pytest.mark.parametrize("fn", [retained_in_chunks, branched_in_chunks])
def test_sizes_in_parts_may_be_quotients_of_those_of_inputs(fn):
    def train(run):
        torch.manual_seed(0)
        m, seen = nn.Linear(4, 4), []
        for n in (2, 4, 6, 8):
            x = torch.randn(n, 4, requires_grad=True)
            y, z = run(m, x)
            z.backward()
            seen += [y, z, x.grad, *(p.grad for p in m.parameters())]
            m.zero_grad()
        return seen

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*TS-T905")
        torch.testing.assert_close(train(torchsmith.compile(fn)), train(fn))


def test_parts_of_parts_take_the_sizes_of_their_call():
    """Each write between two that cannot be compiled is cut off in turn."""

    def shifted(x, y):
        x[:5].relu_()
        y[1:5] = y[3:7]
        x[:, 1:] = x[:, :-1]
        y[:5].add_(1)
        y[:, 2:4] = 0
        return x * 2

    compiled = torchsmith.compile(shifted, dynamic=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*TS-T905")
        for rows, columns in [(9, 8), (9, 10), (8, 10), (9, 12)]:
            whole = torch.randn(rows, 2 * columns)
            mine, theirs = whole[:, :columns], whole.clone()[:, :columns]
            torch.testing.assert_close(compiled(mine, mine), shifted(theirs, theirs))
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_in_parts_may_be_computed_from_numbers(dynamic):
    def drawn(x, k):
        generator = torch.Generator()
        y = torch.cat([torch.zeros(k + 1, 3), x[: x.shape[0] // k]])
        noise = torch.rand(y.shape, generator=generator.manual_seed(3))
        return (y + noise).sin() * 2, (y * noise).repeat(k, 1).sum(0)

    compiled = torchsmith.compile(drawn, dynamic=dynamic)
    for k in (2, 3, 4, 5):
        x = torch.randn(k + 9, 3)
        torch.testing.assert_close(compiled(x, k), drawn(x, k))


@pytest.mark.parametrize("rows", [(3, 3, 3, 3), (3, 4, 5, 6, 7, 8)])
@pytest.mark.parametrize("fn", [branched, branched_within, repeated])
@pytest.mark.parametrize("train", [False, True])
def test_branches_and_loops_on_data_have_compiled_bodies(fn, rows, train, monkeypatch):
    parts = parts_made(monkeypatch)

    def run(f):
        torch.manual_seed(0)
        m, seen = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), []
        for n in rows:
            x = (torch.randn(n, 4) - n % 2).requires_grad_(train)
            with torch.set_grad_enabled(train):
                y, z = f(m, x)
            if train:
                z.backward()
            seen += [y, z, x.grad, *(p.grad for p in m.parameters())]
            m.zero_grad()
        return seen

    torchsmith.clear_metrics()
    torch.testing.assert_close(run(torchsmith.compile(fn)), run(fn))
    graphs = torchsmith.metrics().graphs
    assert {g.outcome for g in graphs} == {"compiled"}
    assert len([g for g in graphs if g.kind != "backward"]) <= 2
    used = [p for p in parts if p.compiled is not None]
    assert len(used) >= 2 and not any(p.compiled is p.part for p in used)


def jagged(m, x):
    h = m(x).relu() * 2
    ends = torch.tensor([0, 2, x.shape[0]])
    padded = torch.nested.nested_tensor_from_jagged(h, ends).to_padded_tensor(0.0)
    return (padded.softmax(-1) * 3).sum(1), (padded.square() + 1).log().sum()


@pytest.mark.parametrize("rows", [(3, 3, 3), (3, 4, 5, 6)])
def test_the_rest_of_a_graph_is_compiled_around_wrapper_subclasses(rows, monkeypatch):
    parts = parts_made(monkeypatch)

    def train(f):
        torch.manual_seed(0)
        m, seen = nn.Linear(4, 4), []
        for n in rows:
            x = torch.randn(n, 4, requires_grad=True)
            y, z = f(m, x)
            z.backward()
            seen += [y, z, x.grad, m.weight.grad.clone()]
        return seen

    torch.testing.assert_close(train(torchsmith.compile(jagged)), train(jagged))
    used = [p for p in parts if p.compiled is not None]
    assert len(used) >= 2 and not any(p.compiled is p.part for p in used)


@pytest.fixture
def halves():
    """An operator whose backward pass looks at data in Python."""
    with torch.library._scoped_library("halves", "FRAGMENT"):

        @torch.library.custom_op("halves::scale", mutates_args=())
        def scale(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return x * torch.arange(1, 3).repeat_interleave(ends)[:, None]

        def backward(ctx, grad):
            parts = grad.split(ctx.ends.tolist())
            return torch.cat([part * (i + 1) for i, part in enumerate(parts)]), None

        def keep(ctx, inputs, output):
            ctx.ends = inputs[1]

        scale.register_fake(lambda x, ends: torch.empty_like(x))
        scale.register_autograd(backward, setup_context=keep)
        yield scale


def test_the_rest_of_a_graph_is_compiled_around_a_backward_pass_on_data(halves, monkeypatch):
    parts = parts_made(monkeypatch)

    def program(m, x, ends):
        y = halves(m(x).sin() * 2, ends)
        return (y.exp() + x).square().sum()

    m = nn.Linear(4, 4)
    run = torchsmith.compile(program)
    for ends in ([2, 3], [4, 1]):
        sides = []
        for f in (run, program):
            torch.manual_seed(0)
            x = torch.randn(5, 4, requires_grad=True)
            f(m, x, torch.tensor(ends)).backward()
            sides.append((x.grad, m.weight.grad.clone()))
            m.zero_grad()
        torch.testing.assert_close(*sides)
    assert len(parts) == 2 and not any(p.compiled in (None, p.part) for p in parts)


def test_many_calls_of_one_operator_are_cut_around_at_once(halves, monkeypatch):
    """More of them than a graph may be cut, with results of several beside them."""
    parts = parts_made(monkeypatch)

    def program(m, x, ends):
        for _ in range(12):
            top, places = m(x).sin().topk(3, 1)
            low, high = x.chunk(2, 1)
            y = halves(torch.cat([top.exp(), low], 1)[:, :4] * 2, ends)
            x = (y + places.sum(1, keepdim=True) * high.mean(1, keepdim=True)).tanh()
        return x.square().sum()

    m = nn.Linear(4, 4)
    sides = []
    for f in (torchsmith.compile(program), program):
        torch.manual_seed(0)
        x = torch.randn(5, 4, requires_grad=True)
        f(m, x, torch.tensor([2, 3])).backward()
        sides.append((x.grad, m.weight.grad.clone()))
        m.zero_grad()
    torch.testing.assert_close(*sides)
    run = [p for p in parts if p.compiled is not None]
    assert len(run) == 14  # twice two at the first cut, then all others
    assert not any(p.compiled is p.part for p in run)


def test_what_is_read_of_an_input_stays_after_what_was_written_into_it(halves, monkeypatch):
    """In a part that is cut again, of whose inputs nothing is known but what it is called with."""
    parts = parts_made(monkeypatch)

    def program(m, x, table, ends):
        y = halves(m(x).sin() * 2, ends)
        table.view(-1).add_(1)
        places = ends + 1
        rows = table[places]
        z = halves(y.exp() * rows[0], ends)
        return (z.cos() + rows.sum() + table[1]).square().sum()

    m, ends = nn.Linear(4, 4).double(), torch.tensor([2, 3])
    run = torchsmith.compile(program)
    sides = []
    for f in (run, program):
        torch.manual_seed(0)
        x, table = torch.randn(5, 4).double().requires_grad_(), torch.randn(6, 4).double()
        results = [f(m, x, table, ends) for _ in range(2)]
        sum(results).backward()
        sides.append((results, table, x.grad, m.weight.grad.clone()))
        m.zero_grad()
    torch.testing.assert_close(*sides)
    assert any(p.compiled not in (None, p.part) for p in parts)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


def around_a_function(x):
    y = (x.sin() * x).relu()
    z = Scaled.apply(y)
    return (z.exp() + y).sum(1)


def test_the_rest_of_a_graph_is_compiled_around_a_node_that_is_not(monkeypatch):
    """torch.compile gives an operator of its own for the function."""
    parts = parts_made(monkeypatch)
    run = torch.compile(around_a_function, backend="smith")
    for seed in range(3):
        sides = []
        for f in (run, around_a_function):
            torch.manual_seed(seed)
            x = torch.randn(3, 4, requires_grad=True)
            y = f(x)
            y.sum().backward()
            sides.append((y, x.grad))
        torch.testing.assert_close(*sides)
    assert len(parts) == 2 and not any(p.compiled in (None, p.part) for p in parts)


def test_a_branch_of_torch_compile_has_compiled_bodies(monkeypatch):
    parts = parts_made(monkeypatch)
    run = torch.compile(branched, backend="smith")
    m = nn.Linear(4, 4)
    for shift in (-2.0, 2.0):
        with torch.no_grad():
            m.bias.fill_(shift)
            torch.testing.assert_close(run(m, torch.ones(3, 4)), branched(m, torch.ones(3, 4)))
    assert len(parts) == 4 and not any(p.compiled in (None, p.part) for p in parts)


def test_a_part_that_fails_prints_nothing_of_its_own(capfd):
    def program(x, w):
        made = nn.Linear(4, 4).to(x)
        return nn.functional.linear(made(x), w)

    for run in (program, torchsmith.compile(program)):
        with pytest.raises(RuntimeError, match="have the same dtype"):
            run(torch.ones(2, 4).double(), torch.ones(4, 4))
    assert "Traceback" not in capfd.readouterr().err


def doubled_inside(m, x):
    y = m(x).sin()
    y.register_hook(lambda grad: grad * 2)
    return y, y.exp().sum()


def own_function(m, x):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    y = Twice.apply(m(x))
    return y, y.exp().sum()


def mapped(m, x):
    y = torch.vmap(lambda row: m(row).sin())(x)
    return y, y.exp().sum()


def differentiated_twice(m, x):
    y = m(x).tanh()
    (g,) = torch.autograd.grad(y.exp().sum(), x, create_graph=True)
    return y, g.square().sum()


EVERYWHERE = {
    "before": lambda note: module.register_module_forward_pre_hook(lambda m, a: note(m)),
    "after": lambda note: module.register_module_forward_hook(lambda m, a, r: note(m)),
    "backward": lambda note: module.register_module_full_backward_hook(lambda m, i, o: note(m)),
    "gradient": lambda note: module.register_module_full_backward_pre_hook(lambda m, o: note(m)),
}
BODIES = [retained, checkpointed, doubled_inside, own_function, mapped, differentiated_twice]


@pytest.mark.parametrize("kind", EVERYWHERE)
@pytest.mark.parametrize("fn", BODIES)
def test_hooks_on_all_modules_see_those_of_the_program_alone(fn, kind):
    def train(run):
        torch.manual_seed(0)
        m, log, seen = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), [], []
        for hooked in (True, False, True):
            x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
            handle = EVERYWHERE[kind](lambda m: log.append(type(m).__name__)) if hooked else None
            run(m, x)[1].backward()
            if handle is not None:
                handle.remove()
            seen.append(x.grad)
            log.append("one call")
        return log, seen

    (mine, ours), (true, eager) = train(torchsmith.compile(fn)), train(fn)
    assert mine == true
    torch.testing.assert_close(ours, eager)


def between_parts():
    """Ends a part: what is after it is another one."""
    torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(torch.float32)


def whole_step(m, x, g):
    noise = torch.randn(3, 4, generator=g)
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        y = m(x + noise).square()
    y.sum().backward()
    m.weight.grad.mul_(m.weight.grad.norm())
    return (y,)


def two_passes(m, x, g):
    y = m(x).sin()
    between_parts()
    y.sum().backward(retain_graph=True)
    between_parts()
    (y * y).sum().backward()
    return (y,)


def of_an_inner_result(m, x, g):
    y = m(x) + torch.randn(3, 4, generator=g)
    z = m(y).sin()
    between_parts()
    (found,) = torch.autograd.grad(z.sum(), y, create_graph=True)
    return z, found, found.square().sum()


def of_inner_pieces(m, x, g):
    a, b = m(x).sin().chunk(2, 1)
    y = (a * b).sum()
    between_parts()
    return y, *torch.autograd.grad(outputs=y, inputs=(a, b), create_graph=True)


def within_and_over(m, x, g):
    y = m(x).sin()
    (inner,) = torch.autograd.grad(y.exp().sum(), m.weight, create_graph=True)
    between_parts()
    z = y.cos() + 1
    return z, *torch.autograd.grad((z * z).sum() + inner.sum(), y)


def own_leaf(m, x, g):
    leaf = torch.randn(3, 4, generator=g).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        y = m(leaf).square().mean()
    return leaf, y


def own_leaf_of_a_part(m, x, g):
    leaf = torch.randn(3, 4, generator=g) * 2
    between_parts()
    leaf.requires_grad_()
    y = m(leaf).sum()
    y.backward()
    return leaf, leaf.grad


OVER_CUTS = [
    whole_step, two_passes, of_an_inner_result, of_inner_pieces, within_and_over, own_leaf,
    own_leaf_of_a_part,
]  # fmt: skip


@pytest.mark.parametrize("fn", OVER_CUTS)
def test_gradients_are_taken_over_cuts(fn, recwarn):
    def train(run):
        torch.manual_seed(0)
        m, seen, g = nn.Linear(4, 4), [], torch.Generator().manual_seed(0)
        for _ in range(2):
            results = run(m, torch.linspace(-1, 1, 12).view(3, 4), g)
            flags = [(x.requires_grad, x.is_leaf) for x in results]
            if fn not in (whole_step, two_passes, within_and_over, own_leaf_of_a_part):
                sum(x.sum() for x in results).backward()
            grads = [x.grad for x in (*m.parameters(), *results) if x.is_leaf]
            seen.append((flags, [x.detach() for x in results], grads))
            m.zero_grad()
        return seen, g.get_state()

    torch.testing.assert_close(train(torchsmith.compile(fn)), train(fn))
    assert not recwarn.list
