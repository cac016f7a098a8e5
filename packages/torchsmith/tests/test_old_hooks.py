"""Hooks of ``register_backward_hook`` see the node of a module's last operator, as eager's do."""

import pytest
import torch
import torchsmith
from torch import nn
from torch.nn.modules.module import register_module_backward_hook

pytestmark = pytest.mark.filterwarnings("ignore:Using a non-full backward hook")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.gain = 2.0

    def forward(self, x):
        return self.layers(x).sin() * self.gain


def outcome(call, net, log):
    net.zero_grad()
    x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
    y = call(x)
    y.sum().backward()
    names, seen = [kind for kind, *_ in log], [grads for _, *grads in log]
    log.clear()
    return names, [y, x.grad, *[p.grad for p in net.parameters()], *seen]


PLACES = ["the whole", "layers", "layers.0", "layers.1", "layers.2", "all modules"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("new", [False, True], ids=["looks", "new gradients"])
def test_hooks_see_what_eagers_see_and_come_and_go(place, new, monkeypatch):
    # What has been registered for all modules decides of what kind hooks may be later.
    monkeypatch.setattr(nn.modules.module, "_global_is_full_backward_hook", None)
    torch.manual_seed(0)
    net, log = Net(), []

    def hook(module, given, made):
        log.append((type(module).__name__, given, made))
        return tuple(None if g is None else g * 2 for g in given) if new else None

    def register():
        if place == "all modules":
            return register_module_backward_hook(hook)
        return net.get_submodule("" if place == "the whole" else place).register_backward_hook(hook)

    compiled = torchsmith.compile(net)
    for hooked in (False, True, True, False, True):
        handle = register() if hooked else None
        try:
            net.gain += 1  # makes no difference to who is called how
            mine, true = (outcome(call, net, log) for call in (compiled, net))
        finally:
            if handle is not None:
                handle.remove()
        torch.testing.assert_close(mine[1], true[1])
        assert mine[0] == true[0] and bool(true[0]) == hooked
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.ones(2, 3)), net(torch.ones(2, 3)))


def test_the_rest_of_the_program_is_compiled_around_the_module():
    net = Net()
    net.layers[1].register_backward_hook(lambda module, given, made: None)
    report = torchsmith.explain(net)(torch.ones(2, 3))
    assert report.graph_count >= 2
    assert "register_backward_hook" in str(report)
