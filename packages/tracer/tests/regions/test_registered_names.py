"""Names that traced code registers in a module and takes back, in one call and over several."""

import pytest
import torch
import torchsmith_tracer
from torch import nn


def buffer_then_attribute(m, x):
    m.register_buffer("n", torch.zeros(1))
    m.n = m.n + 1
    del m.n
    m.n = x


def buffer_if_missing(m, x):
    if not hasattr(m, "w"):
        m.w = nn.Parameter(torch.ones(2))
        m.register_buffer("n", torch.zeros(1))
    m.n += 1
    if m.n > 2:
        del m.w


def parameter_and_none(m, x):
    m.q = nn.Parameter(torch.ones(2))
    m.q = None
    m.q = nn.Parameter(torch.zeros(2))
    del m.q


def buffer_to_attribute(m, x):
    del m.b
    m.b = x * 2


def cleared_table(m, x):
    m._buffers.clear()
    m.b = x


def popped_parameter(m, x):
    m._parameters.pop("p", None)
    m.p = 5


def module_and_none(m, x):
    m.z = nn.Tanh()
    m.z = None


def not_persistent(m, x):
    m.register_buffer("w", x, persistent=False)
    m.w = m.w * 2
    m.w += 1


def refused(m, x):
    m.register_buffer("w", x)
    m.w = 3


def updated_table(m, x):
    m._modules.update(e=nn.Tanh())
    del m.e
    m.e = 1


@pytest.mark.parametrize(
    "body",
    [
        buffer_then_attribute,
        buffer_if_missing,
        parameter_and_none,
        buffer_to_attribute,
        cleared_table,
        popped_parameter,
        module_and_none,
        not_persistent,
        refused,
        updated_table,
    ],
)
def test_names_go_where_module_puts_them(body):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.zeros(1))
            self.p = nn.Parameter(torch.ones(1))

        def forward(self, x):
            body(self, x)
            return x * 2

    rows = []
    for compile in (lambda m: m, lambda m: torchsmith_tracer.compile(m, backend="eager")):
        module, seen = Module(), []
        run = compile(module)
        for n in range(5):
            try:
                result = str(run(torch.full((1, 2), float(n))))
            except (TypeError, KeyError, AttributeError) as e:
                result = repr(e)
            tables = {k: str(v) for k, v in vars(module).items() if k[0] != "_" and k != "training"}
            named = [module._buffers, module._parameters, module._modules]
            seen.append((result, tables, repr(named), sorted(module._non_persistent_buffers_set)))
        rows.append(seen)
    assert rows[0] == rows[1]
