"""``torch.vmap`` and ``torch.func`` inside compiled functions: one graph, equal to eager."""

import pytest
import torch
import torchsmith_tracer as tracer
from torch._higher_order_ops.associative_scan import associative_scan, associative_scan_op
from torch.func import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

X = torch.arange(12.0).reshape(3, 4)
V = torch.linspace(0.5, 2, 4)
W = torch.arange(3.0)


def scaled(x, w):
    return (x * w).sum()


def nested(d):
    return {"s": d["a"] + d["b"][0]}


def vmapped_reshape(x):
    return vmap(lambda a: a.reshape(1, a.shape[0]) * 2)(x)


def with_aux(x):
    return (x**2).sum(), (x + 1, {"twice": x * 2})


def closes_over(y):
    return lambda x: (x * y).sin().sum()


def keeps(x):
    seen = []
    out = vmap(lambda row: seen.append(row.shape) or row.cumsum(0))(x)
    return out, seen


def under_no_grad(x):
    with torch.no_grad():
        return grad(lambda a: a.exp().sum())(x)


def pulled(x):
    out, pull = vjp(lambda a, b: (a * b, a.sum()), x, x + 1)
    return out, pull((torch.ones_like(x), torch.tensor(2.0)))


def pulled_aux(x):
    out, pull, aux = vjp(with_aux, x, has_aux=True)
    return out, pull(torch.tensor(3.0)), aux


def mapped_writes(x):
    y = x.clone()
    vmap(lambda row: row.add_(1))(y)
    return y


PROGRAMS = {
    "vmap": lambda x: vmap(torch.sum)(x),
    "vmap of a torch function over two": lambda x: vmap(torch.dot)(x, x + 1),
    "vmap dims": lambda x: vmap(lambda a, b: a * b, in_dims=(1, None), out_dims=1)(x, W.clone()),
    "vmap closure": lambda x: vmap(lambda a: a @ V)(x) + 1,
    "vmap nest": lambda x: vmap(
        lambda d: {"s": d["a"] + d["b"][0]}, in_dims=({"a": 0, "b": None},)
    )({"a": x, "b": (x[0],)}),
    "vmap vmap": lambda x: vmap(vmap(lambda a, b: a * b), in_dims=(0, None))(x, V.clone()),
    "vmap chunks": lambda x: vmap(lambda a: a * 2, chunk_size=2)(x),
    "vmap out None": lambda x: vmap(lambda a: (a, V.clone()), out_dims=(0, None))(x),
    "vmap writes": mapped_writes,
    "vmap local list": keeps,
    "vmap random": lambda x: vmap(lambda a: a + torch.rand(4), randomness="different")(x),
    "grad": lambda x: grad(lambda a: a.sin().sum())(x),
    "grad argnums": lambda x: grad(scaled, argnums=(0, 1))(x, x + 2),
    "grad argnum 1": lambda x: grad(scaled, argnums=1)(x, x + 2),
    "grad aux": lambda x: grad(with_aux, has_aux=True)(x),
    "grad of a dict": lambda x: grad(lambda p, y: (p["w"] * y + p["b"]).sum())(
        {"w": x, "b": x[0]}, x
    ),
    "grad of grad": lambda x: grad(lambda a: grad(lambda b: (b**3).sum())(a).sum())(x),
    "grad keywords": lambda x: grad(scaled)(x, w=x * 2),
    "grad under no_grad": under_no_grad,
    "grad and value": lambda x: grad_and_value(lambda a: a.cos().sum())(x),
    "grad and value aux": lambda x: grad_and_value(with_aux, has_aux=True)(x),
    "per-sample gradients": lambda x: vmap(grad(scaled, argnums=1), in_dims=(0, None))(
        x, V.clone()
    ),
    "closure": lambda x: grad(closes_over(x * 2))(x),
    "jacrev": lambda x: jacrev(lambda a: (a.sin(), a.sum()))(x[0]),
    "jacrev argnums": lambda x: jacrev(lambda a, b: a * b, argnums=(0, 1))(x[0], x[1]),
    "jacrev aux": lambda x: jacrev(lambda a: (a * 2, a + 1), has_aux=True)(x[0]),
    "jacfwd": lambda x: jacfwd(lambda a: a.sin() * a[0])(x[0]),
    "hessian": lambda x: hessian(lambda a: (a**3).sum())(x[0]),
    "jvp": lambda x: jvp(lambda a, b: (a * b, a + b), (x, x + 1), (x * 0 + 1, x)),
    "jvp aux": lambda x: jvp(with_aux, (x,), (torch.ones_like(x),), has_aux=True),
    "jacrev chunks": lambda x: jacrev(torch.sin, chunk_size=2)(x[0]),
    "jacfwd randomness": lambda x: jacfwd(torch.sin, randomness="same")(x[0]),
    "jvp strict": lambda x: jvp(torch.sin, (x,), (x,), strict=True),
    "vmap keywords": lambda x: vmap(lambda a, b=None: a * b)(x, b=x),
    "vmap index": lambda x: vmap(lambda a, i: a[i] + i)(x, torch.tensor([0, 3, 1])),
    "vjp": pulled,
    "vjp aux": pulled_aux,
    "reads requires_grad": lambda x: grad(lambda a: (a * (2 if a.requires_grad else 3)).sum())(x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_transform_is_part_of_the_graph(check, name):
    check(PROGRAMS[name], X, graphs=1, fullgraph=True)


def test_gradients_flow_through_a_transform():
    def program(x):
        return vmap(lambda row: row.exp() * V)(x).sum()

    x, y = (X.clone().requires_grad_() for _ in range(2))
    program(x).backward()
    tracer.compile(program, backend="eager", fullgraph=True)(y).backward()
    assert torch.equal(x.grad, y.grad)


def test_a_changed_closure_is_seen_by_the_body():
    factor = 2.0

    def program(x):
        return vmap(lambda row: row * factor)(x)

    compiled = tracer.compile(program, backend="eager")
    assert torch.equal(compiled(X), X * 2)
    factor = 5.0
    assert torch.equal(compiled(X), X * 5)


def test_sizes_that_change_are_symbolic_in_bodies(capture):
    compiled = tracer.compile(
        lambda x: vmap(lambda a: a.reshape(1, a.shape[0]) * 2)(x), backend=capture
    )
    for rows, cols in ((3, 4), (5, 7), (6, 9), (8, 2)):
        x = torch.randn(rows, cols)
        torch.testing.assert_close(compiled(x), x.reshape(rows, 1, cols) * 2)
    assert capture.n == 2


@pytest.mark.parametrize(
    "program",
    [
        lambda x, k: vmap(lambda a: (a * k, a / k, k - a, a > k, torch.where(a > 0, a, k), a**k))(
            x
        ),
        lambda x, k: grad(lambda x: vmap(lambda a: (a * k).sin())(x).sum())(x),
        lambda x, k: hessian(lambda x: (x**3).sum() * k)(x[0]),
    ],
)
def test_a_number_that_changes_is_symbolic_in_bodies(program, capture):
    compiled = tracer.compile(program, backend=capture, fullgraph=True)
    for k in (2, 3, 4, 7, -5):
        torch.testing.assert_close(compiled(X, k), program(X, k), equal_nan=True)
    assert capture.n == 2


def test_a_body_that_breaks_runs_natively(check):
    def program(x):
        out = vmap(lambda row: row * float(torch.tensor(2.0).item()))(x)
        return out + 1

    compiled = tracer.compile(program, backend="eager")
    assert torch.equal(compiled(X), X * 2 + 1)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: vmap(lambda a: a, in_dims=5)(x),
        lambda x: vmap(lambda a, b: a)(x, x[:2]),
        lambda x: vmap(lambda a, b: a * b, in_dims=[0, None])(x, x),
        lambda x: vmap(lambda a: 3)(x),
        lambda x: vmap(lambda a: None)(x),
        lambda x: vmap(lambda a: (a, None))(x),
        lambda x: vmap(lambda a, b: a)(x, None),
        lambda x: grad(lambda a: a)(x),
        lambda x: grad(lambda a: (a * x.add_(1)).sum())(x + 1),
        lambda x: jvp(lambda a: a * x.add_(1), (x + 1,), (x + 1,)),
        lambda x: grad(lambda a: a.sum(), argnums=2)(x),
        lambda x: vmap(lambda a: a + torch.rand(4))(x),
    ],
)
def test_misuse_raises_what_eager_raises(program):
    with pytest.raises(Exception) as own:
        program(X)
    with pytest.raises(type(own.value)):
        tracer.compile(program, backend="eager")(X)


def test_a_transform_that_leaves_the_frame_is_rebuilt(check):
    compiled = tracer.compile(lambda x: (vmap(torch.sum), x + 1), backend="eager")
    mapped, _ = compiled(X)
    assert torch.equal(mapped(X), X.sum(1))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_chunk_has_the_effects_of_the_function(size):
    def program(x):
        seen, rounds = [], 0

        def keeps(row):
            nonlocal rounds
            rounds += 1
            seen.append(tuple(row.shape))
            return row.cumsum(0)

        return vmap(keeps, chunk_size=size)(x), seen, rounds

    compiled = tracer.compile(program, backend="eager")
    for x in (X, X[:2], torch.cat([X, X])):
        (mapped, *kept), (expected, *wanted) = compiled(x), program(x)
        assert torch.equal(mapped, expected) and kept == wanted


def test_a_tensor_that_escapes_from_its_function_is_a_break():
    kept = []
    compiled = tracer.compile(lambda x: vmap(lambda a: kept.append(a) or a * 2)(x), backend="eager")
    assert torch.equal(compiled(X), X * 2)
    assert len(kept) == 1
    (found,) = compiled._torchsmith_region.log.breaks
    assert "outside of it" in str(found)


@pytest.mark.parametrize("rows", [0, 1])
def test_an_empty_dimension_is_mapped(check, rows):
    def program(x):
        mapped = vmap(lambda a, b: (a * b).sum(-1) + 1, in_dims=(-2, 0))
        return vmap(lambda a: a * 2)(x[:rows]), mapped(x[None, :rows].expand(2, -1, -1), x[:rows])

    check(program, X, graphs=1, fullgraph=True)


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_an_associative_scan_is_one_graph(check, length):
    """Its halves become empty where its length is a power of two."""

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    def program(x):
        return associative_scan(combine, (x.sigmoid(), x), dim=1, combine_mode="generic")

    check(program, torch.randn(3, length), graphs=1, fullgraph=True)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("length", [1, 5, 8])
def test_the_operator_of_associative_scans_is_taken_apart(check, length, gradients):
    """``combine_mode="pointwise"`` calls it, on a GPU alone."""

    def combine(left, right, *more):
        return [left[0] * right[0], right[0] * left[1] + right[1]]

    def program(x):
        flat = lambda a, b, c, d: combine([a, b], [c, d])  # noqa: E731
        _, sums = associative_scan_op(flat, [x.sigmoid(), x], additional_inputs=())
        return sums.movedim(0, 1)

    x = torch.randn(length, 3, 2, requires_grad=gradients)
    check(program, x, graphs=1, fullgraph=True)


def test_what_a_body_changes_in_place_is_changed_outside(check):
    def program(x):
        y = x[0].clone()
        return vmap(lambda a: a * y.add_(1))(x), y * 2

    check(program, X, graphs=1, fullgraph=True)


mapped = vmap(lambda a, b: a * b.sum(), in_dims=(0, None), out_dims=1)
sliced = vmap(torch.sin, chunk_size=2)
differentiated = grad(lambda a: ((a**2).sum(), a + 1), has_aux=True)
with_value = grad_and_value(lambda a, b=1: (a * b).sum())
rows = jacrev(lambda a, b: a * b, argnums=(0, 1))
columns = jacfwd(lambda a: (a.sin(), a * 2))
curvature = hessian(lambda a: (a**3).sum())

MADE_BEFORE = {
    "vmap": lambda x: mapped(x, x),
    "vmap in chunks": lambda x: sliced(x),
    "grad": lambda x: differentiated(x),
    "grad and value": lambda x: with_value(x, b=x),
    "jacrev": lambda x: rows(x[0], x[1]),
    "jacfwd": lambda x: columns(x[0]),
    "hessian": lambda x: curvature(x[0]),
    "nested": lambda x: vmap(curvature)(x),
}


@pytest.mark.parametrize("name", MADE_BEFORE)
def test_a_transform_made_before_is_part_of_the_graph(check, name):
    check(MADE_BEFORE[name], X, graphs=1, fullgraph=True)


@pytest.mark.parametrize(
    "function", [mapped, differentiated, with_value], ids=["vmap", "grad", "both"]
)
def test_a_transform_is_compiled_itself(function):
    args = (X, X) if function is mapped else (X,)
    got = tracer.compile(function, backend="eager", fullgraph=True)(*args)
    torch.testing.assert_close(got, function(*args))


def test_another_function_in_a_transform_recompiles(capture):
    compiled = tracer.compile(lambda f, x: f(x), backend=capture, fullgraph=True)
    for function in (torch.sin, torch.sin, torch.cos):
        assert torch.equal(compiled(vmap(function), X), function(X))
    assert capture.n == 2
    for number in (0, 1, 0):
        transform = grad(lambda a, b: (a * b * b).sum(), argnums=number)
        both = tracer.compile(lambda f, x: f(x, x + 1), backend=capture)
        torch.testing.assert_close(both(transform, X), transform(X, X + 1))


def branching(a):
    return a.sin() if a.dim() == 2 else a.cos()


AROUND = {
    "vmap": lambda f: vmap(f)(X),
    "grad": lambda f: grad(lambda a: f(a).sum())(X),
    "grad of vmap": lambda f: grad(lambda a: vmap(f)(a).sum())(X),
    "jvp": lambda f: jvp(f, (X,), (X,)),
    "vjp": lambda f: vjp(f, X)[1](X),
    "jacrev": lambda f: jacrev(f)(X[0]),
    "jacfwd": lambda f: jacfwd(f)(X[0]),
    "plain": lambda f: f(X),
}


@pytest.mark.parametrize("name", AROUND)
def test_a_transform_around_a_compiled_function(name):
    """It runs eagerly in there, and as compiled before and after."""
    compiled = tracer.compile(branching, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(X), X.sin())
        torch.testing.assert_close(AROUND[name](compiled), AROUND[name](branching))
    assert not compiled._torchsmith_region.log.breaks
    notes = [f.note for f in compiled._torchsmith_region.log.frames if f.eager]
    assert all("torch.func" in note for note in notes) and bool(notes) == (name != "plain")


def failing(a):
    raise ValueError("inside")


@pytest.mark.parametrize(
    "program",
    [
        lambda x: vmap(failing)(x),
        lambda x: grad(failing)(x),
        lambda x: vmap(grad(failing))(x),
        lambda x: jvp(failing, (x,), (x,)),
        lambda x: vmap(lambda a: a + float(a.sum()))(x),
        lambda x: vmap(lambda a: grad(lambda b: b)(a))(x),
    ],
)
@pytest.mark.parametrize("caught", [False, True])
def test_nothing_is_left_behind(program, caught):
    def run(x):
        if not caught:
            return program(x)
        try:
            return program(x)
        except Exception as e:
            return type(e).__name__

    def state():
        level = torch._C._functorch.peek_interpreter_stack()
        return level, torch.is_grad_enabled(), torch._C._len_torch_dispatch_stack()

    before = state()
    compiled = tracer.compile(run, backend="eager")
    for _ in range(2):
        try:
            want = run(X)
        except Exception as e:
            with pytest.raises(type(e)):
                compiled(X)
        else:
            assert compiled(X) == want
        assert state() == before


def test_whether_a_transform_is_active():
    def program(x):
        def body(y):
            return y * (2 if torch._C._are_functorch_transforms_active() else 3)

        inside = torch.vmap(body)(x), torch.func.grad(lambda y: body(y).sum())(x)
        return *inside, body(x)

    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), program(X))
    torch.testing.assert_close(torch.vmap(compiled)(X[None]), torch.vmap(program)(X[None]))


class Rule(torch.autograd.Function):
    """Its rule for ``vmap`` is its own business."""

    @staticmethod
    def forward(a):
        return a.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0].cos() * g

    @staticmethod
    def vmap(info, in_dims, a):
        return Rule.apply(a) + info.batch_size, in_dims[0]


class NoRule(Rule):
    vmap = torch.autograd.Function.vmap


class Generated(NoRule):
    generate_vmap_rule = True


@pytest.mark.parametrize("function", [Rule, NoRule, Generated])
@pytest.mark.parametrize("history", [False, True])
def test_an_autograd_function_is_mapped_by_its_rule(agree, function, history):
    agree(lambda x: vmap(function.apply)(x), X.clone().requires_grad_(history))


def test_linearize_is_one_break(agree):
    def program(x):
        out, push = torch.func.linearize(torch.sin, x + 1)
        return out + 1, push(x) + 1

    log = agree(program, X)
    assert [b.name for b in log.breaks] == ["opaque-call"]
