"""Convolution nets in training as on a GPU, tried on a CPU: channels-last through both halves."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src import switches
from torchsmith_fx_backend._src.passes import PASSES
from torchsmith_fx_backend._src.passes.batch_norms import BatchNorms
from torchsmith_fx_backend._src.passes.layouts import CONVOLUTION_BACKWARD, ChannelsLast
from torchsmith_fx_backend._src.passes.patches import PatchProducts

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture
def halves(monkeypatch, tmp_path):
    """The graphs that are lowered, after passes that take a CPU for a GPU."""
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    found = []

    class Last:
        name = "last"

        def run(self, graph):
            found.append(graph)
            return False

    def passes(chosen, **options):
        for each in PASSES:
            if isinstance(each, BatchNorms | ChannelsLast | PatchProducts):
                if each.device == "cuda":
                    yield replace(each, device="cpu", dtypes=DTYPES)
            else:
                yield each
        yield Last()

    monkeypatch.setattr(switches, "passes", passes)
    return found


class Tracer(fx.Tracer):
    def is_leaf_module(self, module, name):
        return False


def captured(model):
    return fx.GraphModule(model, Tracer().trace(model))


class Norm(nn.BatchNorm2d):
    def forward(self, x):
        running = self.running_mean, self.running_var
        return F.batch_norm(x, *running, self.weight, self.bias, True, self.momentum)


def block(inputs, outputs, size=3, **options):
    conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **options)
    return nn.Sequential(conv, Norm(outputs))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.first, self.second = block(3, 8, 7, stride=2), block(8, 8), block(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = F.max_pool2d(self.stem(x).relu(), 3, 2, 1)
        x = (x + self.second(self.first(x).relu())).relu()
        return self.head(x.mean((2, 3)))


class Seen(Residual):
    """Gives back an image and a view of it, and reads one by its rows."""

    def forward(self, x):
        x = self.stem(x).relu()
        y = self.first(x)
        return y, y[:, 2:4], y.flatten(1).softmax(1), self.second(y.sigmoid())


class Pyramid(Residual):
    def forward(self, x):
        x = self.stem(x).relu()
        y = self.second(F.avg_pool2d(self.first(x), 2))
        y = F.interpolate(y, scale_factor=2, mode="nearest")
        return torch.cat([x, y], 1).square()


class Averaged(Residual):
    """Averages of large windows, whose gradient aten gets wrong on a GPU in any other layout."""

    def forward(self, x):
        x = self.stem(x).relu()
        return self.second(F.avg_pool2d(self.first(x), 7, 1, 3)).square()


class Grouped(nn.Module):
    """Groups of one channel, with one result each, and with two, which keep eager's layout."""

    def __init__(self):
        super().__init__()
        self.stem, self.deep = block(3, 8), block(8, 8, 5, groups=8)
        self.wide, self.last = block(8, 16, groups=8), nn.Conv2d(16, 4, 1)

    def forward(self, x):
        return self.last(self.wide(self.deep(self.stem(x).relu()).relu()).relu())


class Far(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = block(3, 8)
        self.far = nn.Conv2d(8, 8, 3, padding=9, dilation=9)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.last = nn.Conv2d(4, 2, 3)

    def forward(self, x):
        return self.last(self.up(self.far(self.stem(x).relu()).tanh()))


class Labelled(Residual):
    """A loss of each pixel, whose gradient aten takes row-major alone on a GPU."""

    def __init__(self):
        super().__init__()
        self.register_buffer("labels", torch.arange(512).view(2, 16, 16) % 8)

    def forward(self, x):
        x = self.second(self.first(self.stem(x).relu()).relu())
        return F.cross_entropy(x, self.labels, ignore_index=3), x.log_softmax(1)


class Grey(nn.Module):
    """Images of one channel, which lie in both orders, and weights that are computed."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 7, padding=3, bias=False)
        self.first, self.second = (nn.Parameter(torch.rand(8, 8, 3, 3) - 0.5) for _ in range(2))
        self.register_buffer("mask", torch.ones(3, 3).tril())

    def forward(self, x):
        h = self.stem(x.mean(1, keepdim=True))
        h = h + F.conv2d(h.tanh(), self.first * self.mask, padding=1)
        views = (self.second * self.mask).flatten(1).sin().view(8, 8, 3, 3)
        h = h + F.conv2d(h.tanh(), views, padding=1)
        return h.mean((2, 3))


class Patches(nn.Module):
    """Tokens of an image, as vision transformers make them, and an image of tokens."""

    def __init__(self):
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 12, 4, 4), nn.LayerNorm(12)
        self.inner, self.outer = nn.Linear(12, 24), nn.Linear(24, 12)
        self.scale, self.head = nn.Parameter(torch.rand(12)), nn.Conv2d(12, 2, 2, 2)

    def forward(self, x):
        h = self.patches(x)
        size = h.shape
        h = h.flatten(2).transpose(1, 2)
        for _ in range(2):
            h = h + self.scale * self.outer(F.gelu(self.inner(self.norm(h))))
        return self.head(h.transpose(1, 2).reshape(size)), h.softmax(-1), h[:, 1:]


class Pixels(nn.Module):
    """Single pixels in groups, which are products of a batch, in an image and in rows."""

    def __init__(self):
        super().__init__()
        self.stem, self.inner = nn.Conv2d(3, 144, 5, 5), nn.Conv2d(144, 288, 1, groups=2)
        self.outer, self.head = nn.Conv1d(288, 144, 1, groups=2), nn.Conv2d(144, 4, 3, groups=2)

    def forward(self, x):
        x = self.stem(x)
        y = self.outer(F.gelu(self.inner(x)).flatten(2))
        x = F.layer_norm((x.flatten(2) + y).mT, (144,)).mT.reshape(x.shape)
        return self.head(x), y


def trained(model, call, x, half):
    x = x.clone().requires_grad_()
    steps = []
    for _ in range(2):
        model.zero_grad()
        x.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            results = call(x)
        results = results if isinstance(results, tuple) else (results,)
        sum(r.float().square().mean() for r in results).backward()
        steps.append(
            [*(r.detach() for r in results), x.grad, *(p.grad for p in model.parameters())]
        )
    return steps, list(model.buffers())


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "kind", [Residual, Seen, Pyramid, Averaged, Grouped, Far, Labelled, Grey, Patches, Pixels]
)
def test_values_gradients_and_layouts_are_eagers(halves, kind, half):
    torch.manual_seed(0)
    ours, eagers = kind(), kind()
    eagers.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        compiled = smith(captured(ours), [x.clone().requires_grad_()])
    got, wanted = trained(ours, compiled, x, half), trained(eagers, eagers, x, half)
    close = {"atol": 0.06, "rtol": 0.06} if half else {"atol": 2e-4, "rtol": 1e-3}
    torch.testing.assert_close(got, wanted, **close, check_stride=True)
    assert len(halves) == 2
    calls = [node for graph in halves for node in graph.nodes if node.op == "call_function"]
    assert not any("batch_norm" in str(node.target) for node in calls)
    assert not any("nll_loss2d_backward" in str(node.target) for node in calls)
    averages = [n for n in calls if n.target is aten.avg_pool2d_backward.default and any(n.args[4])]
    assert len(averages) == (kind is Averaged)
    assert all(arg.meta["val"].is_contiguous() for n in averages for arg in n.args[:2])
    for node in calls:
        if node.target is CONVOLUTION_BACKWARD and kind is not Pixels:  # groups of odd width
            images = [arg.meta["val"] for arg in node.args[:2]]
            if node.args[-2] == 1 and max(node.args[6]) == 1 and not node.args[7]:
                assert all(i.is_contiguous(memory_format=torch.channels_last) for i in images)


def test_images_are_not_copied_between_the_halves(halves):
    model = Residual()
    x = torch.randn(2, 3, 32, 32)
    smith(captured(model), [x])(x).sum().backward()
    forward, backward = halves
    copies = forward.find_nodes(op="call_function", target=aten.clone.default)
    assert len(copies) == 1  # of what the model is given
    saved = [n.meta["val"] for n in backward.find_nodes(op="placeholder")]
    images = [v for v in saved if v.dim() == 4 and min(v.shape[-2:]) > 7]
    assert len(images) > 4
    for image in images[1:]:
        assert image.is_contiguous(memory_format=torch.channels_last)


def test_images_of_one_channel_begin_a_stack_in_either_order(halves):
    model, x = Grey().bfloat16(), torch.randn(2, 3, 32, 32).bfloat16()
    smith(captured(model), [x])(x).sum().backward()
    copies = halves[0].find_nodes(op="call_function", target=aten.clone.default)
    assert {tuple(n.meta["val"].shape) for n in copies} == {(8, 8, 3, 3)}  # the weights
    for node in halves[0].find_nodes(op="call_function", target=aten.convolution.default):
        assert node.args[1].meta["val"].is_contiguous(memory_format=torch.channels_last)
    gradients = halves[1].find_nodes(op="call_function", target=CONVOLUTION_BACKWARD)
    weights = [node.args[2] for node in gradients]
    saved = [w.meta["val"] for w in weights if w.op == "placeholder" and w.meta["val"].shape[1] > 1]
    assert saved and all(w.is_contiguous(memory_format=torch.channels_last) for w in saved)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_statistics_of_one_walk_lose_little(halves, layout):
    """Far from zero, beside an outlier that is the first element, and where nothing varies."""

    def norm(x, weight, bias, mean, variance):
        return F.batch_norm(x, mean, variance, weight, bias, True, 0.1)

    torch.manual_seed(0)
    x = torch.randn(4, 4, 16, 16) * torch.tensor([1, 0.01, 1, 0]).view(1, 4, 1, 1)
    x += torch.tensor([0, 30.0, 0, 7]).view(1, 4, 1, 1)
    x[0, 2, 0, 0] = 40.0
    x = x.contiguous(memory_format=layout)
    given = [x, torch.rand(4), torch.rand(4), torch.zeros(4), torch.ones(4)]
    wide = [t.double() for t in given]
    eagers = [t.clone() for t in given]
    result, wanted, eager = (
        smith(fx.symbolic_trace(norm), given)(*given),
        norm(*wide),
        norm(*eagers),
    )
    assert not any("batch_norm" in str(node.target) for node in halves[0].nodes)
    assert result.stride() == eager.stride()
    for ours, theirs, right in zip((result, *given[3:]), (eager, *eagers[3:]), (wanted, *wide[3:])):
        error = (ours.double() - right).norm() / right.norm()
        # How much depends on the width of vectors, which are summed apart.
        assert error <= 4 * (theirs.double() - right).norm() / right.norm() + 3e-5
