"""The matrix product as compilers find it, and fill it with an epilogue of their own."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import kernel_testing as kt
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torchsmith_kernels import (
    ArgumentTypeError,
    ShapeError,
    Template,
    addmm_template,
    matmul_template,
)
from torchsmith_kernels._src import store
from torchsmith_kernels._src.matmul import run
from torchsmith_kernels._src.matmul.config import Config

TEMPLATES = {"mm": matmul_template, "addmm": addmm_template}
# Said by aten when autograd's thread is the first to call cuBLAS.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")

# What a compiler might generate: a gate read at the element's place, and a term per row.
GATED = """
def square(x):
    return x * x

def gated(value, row, column, keep, gate, factor):
    width = 24
    g = tl.load(gate + row * width + column, keep, 0.0).to(tl.float32)
    f = tl.load(factor + row + 0 * column, keep, 0.0)
    return square(value) * g + f
"""


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_the_entry_point_leads_here(name: str) -> None:
    wanted = {"mm": "matmul", "addmm": "addmm"}[name]
    found = [e for e in entry_points(group="torchsmith.kernels") if e.name == wanted]
    if not found:
        pytest.skip("installed before the entry point existed")
    assert found[0].load() is TEMPLATES[name]
    assert isinstance(TEMPLATES[name], Template)


@pytest.mark.parametrize("template", list(TEMPLATES.values()), ids=list(TEMPLATES))
def test_targets_take_the_same_arguments(template: Template) -> None:
    for target in template.targets:
        packet, _, overload = target.removeprefix("aten.").rpartition(".")
        schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
        names = tuple(argument.name for argument in schema.arguments)
        assert names[: len(template.parameters)] == template.parameters
    own = tuple(argument.name for argument in template.op._schema.arguments)
    assert own == template.parameters


@kt.devices
def test_the_ops_compute_what_their_targets_do(device: str) -> None:
    torch.manual_seed(0)
    a = kt.make(5, 16, device=device).requires_grad_()
    b = kt.make(16, 24, device=device).requires_grad_()
    upstream = kt.make(5, 24, device=device)

    def same(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *tensors: Tensor) -> None:
        got, want = ours(*tensors), theirs(*tensors)
        kt.same(got, want)
        for mine, true in zip(
            torch.autograd.grad(got, tensors, upstream),
            torch.autograd.grad(want, tensors, upstream),
            strict=True,
        ):
            kt.same(mine, true)

    same(matmul_template.op, torch.ops.aten.mm.default, a, b)
    for shape in ((24,), (5, 24), (1, 24), (5, 1), (1,)):
        c = kt.make(*shape, device=device).requires_grad_()
        for scales in ({}, {"alpha": 0.5}, {"beta": 2, "alpha": 3}):
            same(
                lambda c, a, b, k=scales: addmm_template.op(c, a, b, **k),
                lambda c, a, b, k=scales: torch.ops.aten.addmm.default(c, a, b, **k),
                c,
                a,
                b,
            )
    nan = torch.full((24,), torch.nan, device=device)
    kt.same(addmm_template.op(nan, a, b, 0), a @ b)
    doubles = [t.double() for t in (c, a, b)]
    want = torch.addmm(*doubles, beta=0.3, alpha=2)
    kt.same(addmm_template.op(*doubles, 0.3, 2), want, 1e-14, 1e-14)


@kt.devices
def test_the_ops_are_registered_completely(device: str) -> None:
    a = kt.make(5, 16, device=device).requires_grad_()
    b, c = kt.make(16, 24, device=device), kt.make(24, device=device).requires_grad_()
    torch.library.opcheck(matmul_template.op, (a, b))
    torch.library.opcheck(addmm_template.op, (c, a, b))


def fake(**changes: Any) -> dict[str, object]:
    with FakeTensorMode():
        a = torch.empty(64, 64, device="cuda", dtype=torch.bfloat16)
        return {"self": a, "mat1": a, "mat2": a, **changes}


def test_matches_what_the_kernels_take() -> None:
    with FakeTensorMode():
        bias = torch.empty(64, device="cuda", dtype=torch.bfloat16)
        exact = torch.empty(64, 64, device="cuda")
    assert matmul_template.matches(fake())
    assert not matmul_template.matches(fake(mat2=torch.ones(64, 64)))
    assert not matmul_template.matches(fake(self=exact, mat2=exact)), "cuBLAS does float32"
    assert not matmul_template.matches(fake(mat2=None))
    assert addmm_template.matches(fake(self=bias))
    assert addmm_template.matches(fake(self=bias, beta=1, alpha=2.0))
    assert not addmm_template.matches(fake(self=bias, beta=2))
    assert not addmm_template.matches(fake()), "only a bias"


def test_speedup_is_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    call = fake()
    assert matmul_template.speedup(call) is None
    a = call["self"]
    assert isinstance(a, Tensor)
    key = run.case_of(a, a, addressed=False).key()
    entry: dict[str, object] = {"speedup_over_library": 0.9, "speedup_with_epilogue": 1.1}
    store.save("matmul", 90, "a GPU", {key: entry})
    assert matmul_template.speedup(call) == 0.9
    assert addmm_template.speedup({**call, "epilogue": True}) == 1.1
    assert matmul_template.speedup(fake(self=torch.ones(2, 2))) is None


def _gated(m: int, device: str) -> tuple[list[Tensor], Tensor]:
    a = kt.make(m, 16, dtype=torch.float16, device=device)
    b = kt.make(16, 24, dtype=torch.float16, device=device, scale=0.25)
    bias = kt.make(24, dtype=torch.float16, device=device)
    gate = kt.make(m, 24, dtype=torch.float16, device=device)
    factor = kt.make(m, device=device)
    want = (a.float() @ b.float() + bias.float()).square() * gate.float() + factor[:, None]
    return [a, b, bias, gate, factor], want.half()


@kt.devices
@kt.needs_kernels
def test_an_epilogue_given_as_text(device: str) -> None:
    torch.manual_seed(0)
    assert addmm_template.epilogue is not None and matmul_template.epilogue is not None
    (a, b, bias, gate, factor), want = _gated(64, device)
    fused = addmm_template.epilogue(GATED)
    kt.same(fused([bias, a, b], [gate, factor]), want, 4e-3, 4e-3)
    for config in (
        Config(32, 32, 16, 2, 4, 2),
        Config(32, 32, 16, 2, 4, 2, split=2),
        Config(64, 64, 32, 2, 4, 2, persistent=True, pieces=2),
        Config(library=True),
    ):
        function = run_function(GATED)
        got = run.forward(a, b, bias, config=config, epilogue=function, extras=[gate, factor])
        kt.same(got[0], want, 4e-3, 4e-3)
    plain = matmul_template.epilogue(
        "def f(value, row, column, keep):\n    return value + column\n"
    )
    column = torch.arange(24, device=device)
    kt.same(plain([a, b], []), (a.float() @ b.float() + column).half(), 4e-3, 4e-3)


def run_function(text: str) -> Any:
    from torchsmith_kernels._src.matmul.epilogue import compile_text

    return compile_text(text)


@kt.needs_kernels
@kt.devices
def test_an_epilogue_given_as_a_function(device: str) -> None:
    assert matmul_template.epilogue is not None
    (a, b, _, _, _), _ = _gated(5, device)
    function = run_function("def negate(value, row, column, keep):\n    return -value\n")
    kt.same(matmul_template.epilogue(function)([a, b], []), -(a @ b), 4e-3, 4e-3)


def test_mistakes_in_epilogues_are_named() -> None:
    assert matmul_template.epilogue is not None
    with pytest.raises(ArgumentTypeError, match="`epilogue` is of type int"):
        matmul_template.epilogue(3)
    with pytest.raises(ArgumentTypeError, match="`epilogue` is a text without a function"):
        matmul_template.epilogue("x = 1")
    with pytest.raises(ArgumentTypeError, match="a function of 9 arguments"):
        matmul_template.epilogue("def f(v, r, c, k, a, b, d, e, g):\n    return v\n")
    fused = matmul_template.epilogue("def f(v, r, c, k, a):\n    return v\n")
    with pytest.raises(ArgumentTypeError, match="`extras` is 0 tensors; .* takes 1 pointers"):
        fused([torch.ones(2, 2), torch.ones(2, 2)], [])
    with pytest.raises(ShapeError, match="none may be empty"):
        fused([torch.ones(0, 2), torch.ones(2, 2)], [torch.ones(2)])


@kt.needs_compiler
def test_resources_of_an_epilogue() -> None:
    a = torch.empty(256, 512, dtype=torch.bfloat16)
    gate, factor = torch.empty(256, 24, dtype=torch.bfloat16), torch.empty(256)
    for name, config in {
        "persistent": Config(128, 256, 64, num_stages=3, persistent=True, pieces=4, flatten=True),
        "pointers": Config(128, 128, 64),
    }.items():
        kt.check_resources(
            "matmul_template",
            name,
            lambda config=config: run.forward(
                a, a.t(), config=config, epilogue=run_function(GATED), extras=[gate, factor]
            ),
        )
