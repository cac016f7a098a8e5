"""``nn.Module`` values: attributes, calls, hooks, containers, state changes."""

import torch
import torchsmith_tracer
from torch import nn

X = torch.randn(2, 4)


class Block(nn.Module):
    def __init__(self, width=4, scale=2):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("offset", torch.ones(width))
        self.register_parameter("gate", None)
        self.scale = scale

    def forward(self, x, *, twice=False):
        h = self.down(nn.functional.gelu(self.up(self.norm(x))))
        if self.gate is not None:
            h = h * self.gate
        if twice:
            h = h * self.scale
        return x + self.drop(h) + self.offset


class Stack(nn.Module):
    def __init__(self, n=3):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(n))
        self.named = nn.ModuleDict({"head": nn.Linear(4, 2), "skip": nn.Identity()})
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.limit = n

    def forward(self, x):
        for i, layer in enumerate(self.layers[: self.limit]):
            x = layer(x, twice=i == 1)
        x = self.layers[-1](x)
        x = self.body(x)
        for _, m in self.named.items():
            x = m(x)
        return x


def run(module, *args, capture, calls=2):
    compiled = torchsmith_tracer.compile(module, backend=capture, fullgraph=True)
    for seed in range(calls):
        torch.manual_seed(seed)
        expected = module(*args)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(*args), expected)
    return compiled


def test_module_in_eval_mode(capture):
    run(Block().eval(), X, capture=capture)
    assert capture.n == 1
    assert len(capture.placeholders()) == 7  # x, four of norm and up, down.weight, offset


def test_training_mode_draws_the_numbers_of_eager(capture):
    run(Block().train(), X, capture=capture)
    assert capture.n == 1


def test_containers_of_modules(capture):
    run(Stack().eval(), X, capture=capture)
    assert capture.n == 1


def test_module_as_argument_of_a_function(check):
    block = Block().eval()

    def f(m, x):
        return m(x, twice=True) + m.offset, m.training, m.scale

    check(f, block, X, graphs=1, fullgraph=True)


def test_train_flag_and_attributes_are_guarded(capture):
    block = Block().eval()
    compiled = torchsmith_tracer.compile(
        lambda m, x: m(x, twice=True), backend=capture, fullgraph=True
    )
    assert torch.equal(compiled(block, X), block(X, twice=True))
    block.scale = 3
    assert torch.equal(compiled(block, X), block(X, twice=True))
    assert capture.n == 2
    block.train()
    torch.manual_seed(1)
    expected = block(X, twice=True)
    torch.manual_seed(1)
    assert torch.equal(compiled(block, X), expected)
    assert capture.n == 3


def test_equal_modules_share_code(capture):
    compiled = torchsmith_tracer.compile(lambda m, x: m(x), backend=capture, fullgraph=True)
    for _ in range(3):
        m = nn.Linear(4, 4)
        assert torch.equal(compiled(m, X), m(X))
    assert capture.n == 1


def test_replaced_parameter_needs_no_recompile(capture):
    m = nn.Linear(4, 4)
    compiled = torchsmith_tracer.compile(m, backend=capture, fullgraph=True)
    compiled(X)
    m.weight = nn.Parameter(torch.zeros(4, 4))
    assert torch.equal(compiled(X), m(X))
    assert capture.n == 1


def test_tied_weights_are_one_input(capture):
    m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).eval()
    m[1].weight = m[0].weight
    run(m, X, capture=capture)
    assert len(capture.placeholders()) == 4
    m[1].weight = nn.Parameter(torch.zeros(4, 4))
    compiled = run(m, X, capture=capture)
    assert torch.equal(compiled(X), m(X))


def test_forward_hooks_are_traced(capture):
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    m[0].register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
    m[0].register_forward_hook(lambda mod, args, out: out * 2)
    m[1].register_forward_hook(lambda mod, args, kwargs, out: out + 3, with_kwargs=True)
    run(m, X, capture=capture)
    assert capture.n == 1


def test_hook_added_later_is_noticed(capture):
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    compiled = run(m, X, capture=capture)
    handle = m[0].register_forward_hook(lambda mod, args, out: out * 2)
    assert torch.equal(compiled(X), m(X))
    handle.remove()
    assert torch.equal(compiled(X), m(X))


def test_global_hook_is_noticed(capture):
    m = nn.Linear(4, 4)
    compiled = run(m, X, capture=capture)
    handle = nn.modules.module.register_module_forward_hook(lambda mod, args, out: out * 2)
    try:
        assert torch.equal(compiled(X), m(X))
    finally:
        handle.remove()


def test_replaced_forward_is_noticed(capture):
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = run(m, X, capture=capture)
    m[0].forward = lambda x: x * 5
    assert torch.equal(compiled(X), m(X))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0
        self.last = None
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.n += 1
        self.total.add_(x.sum(0))
        self.last = x * self.n
        return self.last + self.total


def test_state_changes_are_visible():
    mine, theirs = Counter(), Counter()
    compiled = torchsmith_tracer.compile(mine, fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(X), theirs(X))
    assert mine.n == 3
    assert torch.equal(mine.total, theirs.total)
    assert torch.equal(mine.last, theirs.last)


class Replace(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x):
        self.state = self.state + x.sum(0)
        return self.state * 2


def test_buffer_can_be_replaced():
    mine, theirs = Replace(), Replace()
    compiled = torchsmith_tracer.compile(mine, fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(X), theirs(X))
    assert list(mine.state_dict()) == ["state"]
    assert torch.equal(mine.state, theirs.state)


class Walk(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.ModuleList([nn.Linear(4, 4)])

    @property
    def dtype(self):
        return next(self.parameters()).dtype

    def forward(self, x):
        total = sum(p.sum() for p in self.parameters())
        names = [n for n, _ in self.named_parameters()]
        kinds = [type(m).__name__ for m in self.modules()]
        kids = [n for n, _ in self.named_children()]
        return x.to(self.dtype) + total, names, kinds, kids, len(list(self.buffers()))


def test_walking_over_parts():
    m = Walk()
    compiled = torchsmith_tracer.compile(m, fullgraph=True)
    got, expected = compiled(X), m(X)
    torch.testing.assert_close(got[0], expected[0])
    assert got[1:] == expected[1:]


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def __getattr__(self, name):
        if name.startswith("virtual_"):
            return int(name.removeprefix("virtual_"))
        return super().__getattr__(name)

    def __call__(self, x):
        return super().__call__(x) + self.virtual_7

    def forward(self, x):
        return self.inner(x)


def test_custom_getattr_and_call(check):
    check(lambda m, x: m(x), Custom().eval(), X, graphs=1, fullgraph=True)


def test_missing_attribute(check):
    def f(m, x):
        return hasattr(m, "weight"), hasattr(m, "nothing"), getattr(m, "other", 5), m(x)

    check(f, nn.Linear(4, 4), X, graphs=1, fullgraph=True)


def test_recurrent_modules_run_eagerly_and_right():
    lstm = nn.LSTM(4, 3)
    x = torch.randn(5, 2, 4)
    compiled = torchsmith_tracer.compile(lambda m, x: m(x + 0)[0] * 2)
    torch.testing.assert_close(compiled(lstm, x), lstm(x)[0] * 2)


def test_modules_made_inside(check):
    def f(x):
        return nn.Softmax(dim=-1)(x), nn.Flatten()(x), nn.ReLU()(x)

    check(f, X, fullgraph=True)


def test_module_stack_is_recorded(capture):
    m = Stack().eval()
    torchsmith_tracer.compile(m, backend=capture, fullgraph=True)(X)
    linear = [n for n in capture.graphs[0].graph.nodes if "layer_norm" in str(n.target)]
    paths = [path for path, _ in linear[1].meta["nn_module_stack"].values()]
    assert any(p.endswith("layers.1") for p in paths)
    assert [c for _, c in linear[1].meta["nn_module_stack"].values()][-1] is nn.LayerNorm


class Inner(nn.Module):
    def forward(self, x):
        return x.sin()


class Middle(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = nn.ModuleList([inner])

    def forward(self, x):
        return self.inner[0](x) + 1


class Outer(nn.Module):
    """Its two children share one of theirs."""

    def __init__(self):
        super().__init__()
        inner = Inner()
        self.left, self.right, self.again = Middle(inner), Middle(inner), inner

    def forward(self, x):
        return self.again(self.left(x) * self.right(self.left(x)))


def test_a_shared_module_is_named_as_it_is_used(capture):
    model = Outer()
    torchsmith_tracer.compile(model, backend=capture, fullgraph=True)(X)
    sines = [n for n in capture.graphs[0].graph.nodes if n.op == "call_method"]
    stacks = [[*n.meta["nn_module_stack"].values()] for n in sines]
    assert [[path for path, _ in stack] for stack in stacks] == [
        ["self", "self.left", "self.left.inner.0"],
        ["self", "self.left", "self.left.inner.0"],
        ["self", "self.right", "self.right.inner.0"],
        ["self", "self.again"],
    ]
    assert [[kind for _, kind in stack] for stack in stacks[:3]] == [[Outer, Middle, Inner]] * 3
    for node, stack in zip(sines, stacks):
        for expr, (path, _) in zip(node.meta["nn_module_stack"], stack):
            found = eval(expr, {"self": model})
            assert found is model.get_submodule(path.removeprefix("self").removeprefix("."))
    others = [n for n in capture.graphs[0].graph.nodes if n.op == "call_function"]
    assert all("nn_module_stack" in n.meta for n in others)
    ends = [n for n in capture.graphs[0].graph.nodes if n.op in ("placeholder", "output")]
    assert not any("nn_module_stack" in n.meta for n in ends)


def test_common_layers(capture):
    m = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 8),
        nn.RMSNorm(8),
        nn.GELU(),
    ).eval()
    run(m, torch.randn(2, 3, 8, 8), capture=capture)
    assert capture.n == 1


def test_batch_norm_in_training_updates_its_statistics():
    import copy

    mine = nn.BatchNorm1d(4)
    theirs = copy.deepcopy(mine)
    compiled = torchsmith_tracer.compile(mine, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), theirs(X))
    assert torch.equal(mine.running_mean, theirs.running_mean)
    assert mine.num_batches_tracked == theirs.num_batches_tracked


def test_attention_and_transformer_layers(capture):
    m = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    run(m, torch.randn(2, 3, 8), capture=capture)
    assert capture.n == 1


def test_embedding_and_heads(capture):
    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.wte.weight

        def forward(self, ids):
            return self.head(self.wte(ids))

    run(Tiny(), torch.randint(0, 10, (2, 3)), capture=capture)
    assert len(capture.placeholders()) == 2
