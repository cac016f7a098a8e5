"""Fake results without ``torch._dynamo``, in fresh processes; the package still loads as always."""

import subprocess
import sys
import textwrap

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torchsmith_guards import FakeMode, ShapeEnv
from torchsmith_guards._src.fake.lean import defaults, knows_constructor

SETUP = """
import sys
import torch
import torch.nn.functional as F
from torchsmith_guards import FakeMode, LocalSource, ShapeEnv

def model(x, w, mask):
    h = F.gelu(F.layer_norm(F.linear(x, w), (8,)))
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    q = h.view(2, -1, 2, 4).transpose(1, 2)
    a, b = q.chunk(2, dim=-1)
    q = q * mask + torch.cat((-b, a), dim=-1)
    y = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    return y.transpose(1, 2).reshape(2, -1, 8).softmax(-1)

def fake_run(env=None):
    mode = FakeMode(env)
    args = [torch.ones(2, 5, 8), torch.ones(8, 8), torch.ones(4)]
    dims = [{1} if env else None, None, None]
    fakes = [mode.fakeify(a, LocalSource(f"x{i}"), d) for i, (a, d) in enumerate(zip(args, dims))]
    with mode.mode, torch.no_grad():
        return mode, model(*fakes)

def no_rule(mode):
    with mode.mode:
        return torch.ones(3, 4).cummax(0).values
"""


def fresh(code):
    """Run code in a new process."""
    source = SETUP + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_model_is_faked_without_the_package():
    fresh(
        """
        mode, y = fake_run()
        assert tuple(y.shape) == (2, 5, 8)
        assert "torch._dynamo" not in sys.modules
        """
    )


def test_a_model_of_symbolic_sizes_is_faked_without_the_package():
    fresh(
        """
        mode, y = fake_run(ShapeEnv())
        assert [str(n) for n in y.shape] == ["2", "s0", "8"]
        assert "torch._dynamo" not in sys.modules
        """
    )


def test_a_model_with_views_is_faked_without_what_asking_for_devices_imports():
    fresh(
        """
        before = set(sys.modules)
        fake_run()
        assert {"sympy", "torch.distributed.tensor"}.isdisjoint(set(sys.modules) - before)
        """
    )


def test_attention_of_a_fused_projection_is_faked_without_what_torch_imports():
    fresh(
        """
        before = set(sys.modules)
        mode = FakeMode()
        x = mode.fakeify(torch.ones(2, 5, 24))
        with mode.mode, torch.no_grad():
            q, k, v = (t.view(2, -1, 2, 4).transpose(1, 2) for t in x.chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert y.stride() == (40, 4, 8, 1)
        assert {"sympy", "torch._dynamo"}.isdisjoint(set(sys.modules) - before)
        """
    )


def test_operators_of_torch_do_not_load_the_package():
    fresh(
        """
        mode, y = fake_run()
        assert tuple(no_rule(mode).shape) == (3, 4)
        assert "torch._dynamo" not in sys.modules
        assert "_dynamo" not in vars(torch)
        """
    )


@pytest.mark.parametrize(
    "use",
    [
        "import torch._dynamo; torch._dynamo.config",
        "from torch import _dynamo; assert _dynamo is sys.modules['torch._dynamo']",
        "torch._dynamo.reset()",
        "import torch._dynamo.config as c; assert c._custom_ops_profile is None",
        "assert torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2)).sum() == 4",
    ],
)
def test_the_package_loads_afterwards(use):
    fresh(
        f"""
        mode, y = fake_run()
        no_rule(mode)
        {use}
        assert torch._dynamo is sys.modules["torch._dynamo"]
        assert tuple(no_rule(mode).shape) == (3, 4)
        assert tuple(fake_run()[1].shape) == (2, 5, 8)
        """
    )


@pytest.mark.parametrize(
    "use",
    [
        "torch._dynamo.reset()",
        "import torch._dynamo; torch._dynamo.reset()",
        "from torch import _dynamo; _dynamo.reset()",
        "torch._dynamo.config.verbose = True; import torch._dynamo.config as c; assert c.verbose",
        "assert torch._dynamo.config._custom_ops_profile is None; torch._dynamo.config.verbose",
    ],
)
def test_code_that_runs_inside_gets_the_real_package(use):
    fresh(
        f"""
        from torchsmith_guards._src.fake.lean import without_dynamo
        with without_dynamo():
            {use}
        assert torch._dynamo is sys.modules["torch._dynamo"]
        assert torch._dynamo.__name__ == "torch._dynamo"
        """
    )


def test_defaults_are_those_of_torch():
    assert knows_constructor()
    ours, theirs = FakeMode().mode, FakeTensorMode(allow_non_fake_inputs=True)
    different = {"fake_tensor_converter", "_stack_trace", "_stack"}
    for name in defaults().keys() - different:
        assert getattr(ours, name) == getattr(theirs, name), name
    missing = vars(theirs).keys() - vars(ours).keys() - {"cache_enabled"}
    assert missing == set()


def test_an_unknown_constructor_is_used(monkeypatch):
    from torchsmith_guards._src.fake import torch_mode

    monkeypatch.setattr(torch_mode, "knows_constructor", lambda: False)
    mode = torch_mode.TorchMode(None)
    assert mode.allow_non_fake_inputs
    assert mode._stack_trace  # which only torch's constructor fills


def test_literals_are_faked_without_the_package():
    fresh(
        """
        mode = FakeMode(ShapeEnv())
        x = mode.fakeify(torch.ones(2))
        with mode.mode:
            y = x + torch.tensor([1.0, 2.0])
            z = x * torch.tensor(3.0)
            assert torch.tensor(4).item() == 4
        assert y.shape == z.shape == (2,)
        assert "torch._dynamo" not in sys.modules
        """
    )


def test_a_literal_of_one_element_is_known_until_it_is_written():
    mode = FakeMode(ShapeEnv())
    with mode.mode:
        literal = torch.tensor(2.0)
        assert literal.item() == 2.0
        assert (literal * torch.tensor(3.0)).item() == 6.0
        literal.add_(torch.tensor(1.0))
        assert literal.item() == 3.0
        x = mode.fakeify(torch.ones(()))
        literal.add_(x)
        assert literal.constant is None
        assert (x + torch.tensor(1)).dtype == torch.float32
