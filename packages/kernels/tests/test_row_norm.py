"""The four norms of rows against eager and float64, on every path that exists here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kernel_testing as kt
import pytest
import torch
import torch.nn.functional as F
import torchsmith_kernels as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchsmith_kernels._src.add_layer_norm.op import op as add_layer_norm_op
from torchsmith_kernels._src.add_rms_norm.op import op as add_rms_norm_op
from torchsmith_kernels._src.layer_norm.op import op as layer_norm_op
from torchsmith_kernels._src.rms_norm.op import op as rms_norm_op
from torchsmith_kernels._src.row_norm import config, reference, run
from torchsmith_kernels._src.row_norm.config import Case, Config
from torchsmith_kernels._src.row_norm.op import layer_norm_backward, rms_norm_backward

EPS = 1e-5


@dataclass(frozen=True)
class Norm:
    """One of the ops, called with its tensors only; they are in the order of its arguments."""

    name: str
    op: Any

    @property
    def mean(self) -> bool:
        return self.name.endswith("layer_norm")

    @property
    def added(self) -> bool:
        return self.name.startswith("add_")

    def split(self, tensors: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """(rows, parameters), with None for parameters that are left out."""
        inputs, parameters = tensors[: 1 + self.added], tensors[1 + self.added :]
        return inputs, parameters + (None,) * (1 + self.mean - len(parameters))

    def ours(self, shape: tuple[int, ...], eps: float = EPS) -> Callable[..., Any]:
        def call(*tensors: Tensor) -> Any:
            inputs, parameters = self.split(tensors)
            return getattr(tk, self.name)(*inputs, shape, *parameters, eps)

        return call

    def eager(self, shape: tuple[int, ...], eps: float = EPS) -> Callable[..., Any]:
        def call(*tensors: Tensor) -> Any:
            inputs, parameters = self.split(tensors)
            function = F.layer_norm if self.mean else F.rms_norm
            total = sum(inputs[1:], inputs[0])
            normed = function(total, shape, *parameters, eps)  # type: ignore[operator]
            return (normed, total) if self.added else normed

        return call

    def make(
        self,
        sizes: tuple[int, ...],
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        parameters: bool = True,
    ) -> list[Tensor]:
        kinds = {"dtype": dtype, "device": device}
        rows = [kt.make(*sizes, **kinds) + 0.5 for _ in range(1 + self.added)]
        return rows + [kt.make(*shape, **kinds) for _ in range((1 + self.mean) * parameters)]

    def op_args(self, tensors: list[Tensor], shape: tuple[int, ...]) -> tuple[Any, ...]:
        inputs, parameters = self.split(tuple(tensors))
        return (*inputs, shape, *parameters, EPS)


NORMS = [
    Norm("rms_norm", rms_norm_op),
    Norm("layer_norm", layer_norm_op),
    Norm("add_rms_norm", add_rms_norm_op),
    Norm("add_layer_norm", add_layer_norm_op),
]
norms = pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.name)


@norms
@kt.devices
@kt.dtypes
@pytest.mark.parametrize(("rows", "width"), [(1, 3), (7, 100), (70, 33), (5, 1024)])
def test_results_and_gradients(
    rows: int, width: int, dtype: torch.dtype, device: str, norm: Norm
) -> None:
    torch.manual_seed(width)
    tensors = norm.make((rows, width), (width,), dtype, device)
    few = 4.0 if rows == 1 else 1.0  # a handful of values is no sample
    kt.no_worse_than_eager(norm.ours((width,)), norm.eager((width,)), tensors, slack=few)


@norms
@kt.devices
def test_without_parameters_and_over_several_dimensions(device: str, norm: Norm) -> None:
    for sizes, shape in (((3, 4, 5, 6), (5, 6)), ((2, 7), (2, 7)), ((9,), (9,))):
        for parameters in (True, False):
            tensors = norm.make(sizes, shape, device=device, parameters=parameters)
            kt.no_worse_than_eager(norm.ours(shape), norm.eager(shape), tensors, slack=4.0)


@kt.devices
@pytest.mark.parametrize("norm", [NORMS[1], NORMS[3]], ids=lambda norm: norm.name)
def test_layer_norm_with_one_parameter(norm: Norm, device: str) -> None:
    *inputs, weight, bias = norm.make((6, 40), (40,), device=device)
    kt.no_worse_than_eager(norm.ours((40,)), norm.eager((40,)), [*inputs, weight])

    def only_bias(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *tensors: function(*tensors[:-1], None, tensors[-1])

    kt.no_worse_than_eager(
        only_bias(norm.ours((40,))), only_bias(norm.eager((40,))), [*inputs, bias]
    )


@norms
@kt.devices
@settings(max_examples=8, deadline=None)
@given(sizes=st.lists(st.integers(0, 6), max_size=2), width=st.integers(0, 40))
def test_any_shape(sizes: list[int], width: int, device: str, norm: Norm) -> None:
    tensors = norm.make((*sizes, width), (width,), device=device)
    leaves = [t.requires_grad_() for t in tensors]
    results = kt.as_tuple(norm.ours((width,))(*leaves))
    assert all(result.shape == (*sizes, width) for result in results)
    if width:
        for got, want in zip(results, kt.as_tuple(norm.eager((width,))(*leaves)), strict=True):
            kt.same(got, want)
    for leaf, grad in zip(
        leaves, torch.autograd.grad([r.sum() for r in results], leaves), strict=True
    ):
        assert grad.shape == leaf.shape
        if leaf.dim() == 1 and 0 in (*sizes, width):
            assert torch.equal(grad, torch.zeros_like(leaf)), "no row, no gradient"


LAYOUTS = {
    "sliced rows": lambda t: t[:, ::2],
    "sliced columns": lambda t: t[..., 4:36],
    "unaligned": lambda t: t[..., 1:33],
    "transposed": lambda t: t.transpose(0, 1),
    "transposed inside": lambda t: t.transpose(1, 2),
    "expanded": lambda t: t[:1].expand(5, -1, -1),
    "one row": lambda t: t[2, 3],
    "steps in a row": lambda t: t[..., ::2],
}


@norms
@kt.devices
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_strided_inputs(layout: str, device: str, norm: Norm) -> None:
    change = LAYOUTS[layout]
    first, second, grad, grad_sum = (kt.make(4, 6, 40, device=device) for _ in range(4))
    inputs = [change(first), second.new_empty(0)][: 1 + norm.added]
    if norm.added:
        inputs[1] = change(second)
    shape = (inputs[0].shape[-1],)
    parameters = norm.make((1,), shape, device=device)[1 + norm.added :]
    tensors = [*inputs, *parameters]
    results = kt.as_tuple(norm.ours(shape)(*tensors))
    assert all(result.is_contiguous() for result in results)
    for got, want in zip(results, kt.as_tuple(norm.eager(shape)(*tensors)), strict=True):
        kt.same(got, want)
    weight, bias = parameters[0], parameters[1] if norm.mean else None
    above = change(grad_sum) if norm.added else None
    arguments = change(grad), above, inputs[0], shape, weight
    if norm.mean:
        found = layer_norm_backward(*arguments, bias, EPS, True, True, True)
    else:
        found = rms_norm_backward(*arguments, EPS, True, True)
    wanted = reference.backward(*arguments, bias, EPS, norm.mean)
    for got, want in zip(found, wanted, strict=False):
        kt.same(got, want)


@norms
@kt.devices
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes in numpy
def test_nan_and_infinity_behave_as_in_the_reference(device: str, norm: Norm) -> None:
    x = kt.make(6, 40, device=device)
    x[0, 3], x[1, 5], x[2, 6] = math.nan, math.inf, -math.inf
    x[3] = 0.0
    x[4, 0] = 1e30  # its square overflows
    residual = torch.zeros_like(x) if norm.added else None
    weight, bias = (kt.make(40, device=device) for _ in range(2))
    weight[7] = math.nan
    grad = kt.make(6, 40, device=device)
    for eps in (1e-6, 0.0):
        given = [x, residual, weight, bias if norm.mean else None]
        tensors = [t for t in given if t is not None]
        got = kt.as_tuple(norm.ours((40,), eps)(*tensors))[0]
        shared = (40,), weight, given[3]
        kt.same(got, reference.forward(x, *shared, eps, norm.mean))
        if norm.mean:
            found = layer_norm_backward(grad, residual, x, *shared, eps, True, True, True)
        else:
            found = rms_norm_backward(grad, residual, x, *shared[:2], eps, True, True)
        wanted = reference.backward(grad, residual, x, *shared, eps, norm.mean)
        for ours, theirs in zip(found, wanted, strict=False):
            kt.same(ours, theirs, rtol=1e-4)


@norms
@kt.devices
def test_two_runs_are_bit_equal(device: str, norm: Norm) -> None:
    tensors = [t.requires_grad_() for t in norm.make((90, 96), (96,), device=device)]
    upstream = [torch.ones_like(tensors[0]) for _ in range(1 + norm.added)]

    def both() -> list[Tensor]:
        results = kt.as_tuple(norm.ours((96,))(*tensors))
        return [*results, *torch.autograd.grad(results, tensors, upstream)]

    kt.bit_equal(both)


@norms
@kt.devices
def test_only_the_needed_gradients(device: str, norm: Norm) -> None:
    tensors = norm.make((4, 16), (16,), device=device)
    for place in range(len(tensors)):
        leaves = [t.detach().requires_grad_(i == place) for i, t in enumerate(tensors)]
        results = kt.as_tuple(norm.ours((16,))(*leaves))
        results[0].sum().backward()
        assert [leaf.grad is not None for leaf in leaves] == [
            i == place for i in range(len(leaves))
        ]
    with torch.no_grad():
        assert not kt.as_tuple(norm.ours((16,))(*leaves))[0].requires_grad
    with torch.inference_mode():
        assert kt.as_tuple(norm.ours((16,))(*leaves))[0].is_inference()


@kt.devices
@pytest.mark.parametrize("norm", NORMS[2:], ids=lambda norm: norm.name)
@pytest.mark.parametrize("used", ["normed", "sum"])
def test_one_of_two_results(used: str, device: str, norm: Norm) -> None:
    tensors = norm.make((4, 16), (16,), device=device)
    leaves = [[t.clone().requires_grad_() for t in tensors] for _ in range(2)]
    place = ["normed", "sum"].index(used)
    for function, own in zip((norm.ours((16,)), norm.eager((16,))), leaves, strict=True):
        (function(*own)[place] ** 2).sum().backward()
    for ours, theirs in zip(*leaves, strict=True):
        if theirs.grad is not None:
            kt.same(ours.grad, theirs.grad, rtol=1e-4)


@norms
@kt.devices
def test_parameters_of_another_dtype(device: str, norm: Norm) -> None:
    for kind in (torch.float32, torch.float64, torch.float16):
        tensors = norm.make((5, 32), (32,), torch.bfloat16, device)
        tensors = [t if t.dim() == 2 else t.to(kind) for t in tensors]
        leaves = [t.requires_grad_() for t in tensors]
        result = kt.as_tuple(norm.ours((32,))(*leaves))[0]
        assert result.dtype is torch.bfloat16
        grads = torch.autograd.grad(result.sum(), leaves)
        assert [g.dtype for g in grads] == [t.dtype for t in tensors]
        want = norm.eager((32,))(*[t.double() for t in tensors])
        assert (
            kt.error(result.detach(), kt.as_tuple(want)[0].detach())
            < 3 * kt.ROUNDOFF[torch.bfloat16]
        )


def variants(kernel: str) -> list[Config]:
    """Configurations that reach every branch of the kernels at a width of 200."""
    if kernel == "forward":
        return [Config(2, 256, 4, 2, 1), Config(1, 64, 4), Config(8, 256, 4, 3, 2)]
    return [Config(2, 256, 4, 2, 1), Config(2, 128, 4, 1, 1), Config(1, 128, 4, 2, 1),
            Config(1, 32, 4, 2, 1)]  # fmt: skip


@norms
@kt.devices
@kt.needs_kernels
def test_every_way_to_walk_the_rows(device: str, norm: Norm) -> None:
    torch.manual_seed(0)
    tensors = norm.make((5, 200), (200,), device=device)
    inputs, (weight, *rest) = norm.split(tuple(tensors))
    bias = rest[0] if norm.mean else None
    residual = inputs[1] if norm.added else None
    total = reference.add(inputs[0], residual)
    shared = (200,), weight, bias, EPS, norm.mean
    for choice in variants("forward"):
        got, its_sum = run.forward(norm.name, inputs[0], residual, *shared, choice)
        kt.same(got, reference.forward(total, *shared))
        if norm.added:
            assert torch.equal(its_sum, total)
    grad = kt.make(5, 200, device=device)
    wanted = reference.backward(grad, residual, total, *shared)
    for choice in variants("backward"):
        found = run.backward(norm.name, grad, residual, total, *shared, True, True, True, choice)
        for got, want in zip(found, wanted, strict=True):
            if want is not None:
                kt.same(got, want, rtol=1e-4, atol=1e-4)


@norms
@kt.devices
def test_wide_rows(device: str, norm: Norm) -> None:
    torch.manual_seed(1)
    width = 9000
    tensors = norm.make((2, width), (width,), device=device)
    kt.no_worse_than_eager(norm.ours((width,)), norm.eager((width,)), tensors)


@norms
@kt.devices
def test_operator_is_registered_completely(device: str, norm: Norm) -> None:
    for sizes, shape in (((2, 3, 5), (5,)), ((4, 0, 6), (6,))):
        tensors = [t.requires_grad_() for t in norm.make(sizes, shape, device=device)]
        torch.library.opcheck(norm.op.overload, norm.op_args(tensors, shape))
    bare = norm.make((4, 6), (4, 6), device=device, parameters=False)
    torch.library.opcheck(norm.op.overload, norm.op_args(bare, (4, 6)))


@kt.devices
@pytest.mark.parametrize("needed", [(True, True, True), (True, False, False), (False, True, False)])
def test_backward_operators_are_registered_completely(
    needed: tuple[bool, bool, bool], device: str
) -> None:
    grad, x, weight, bias = (kt.make(*s, device=device) for s in ((4, 6), (4, 6), (6,), (6,)))
    for above, w, b in ((None, weight, bias), (grad, None, None)):
        layer = (grad, above, x, (6,), w, b, EPS, *needed)
        torch.library.opcheck(layer_norm_backward.overload, layer)
        rms = (grad, above, x, (6,), w, EPS, *needed[:2])
        torch.library.opcheck(rms_norm_backward.overload, rms)


@norms
def test_gradients_are_right(norm: Norm) -> None:
    torch.manual_seed(0)
    for parameters in (True, False):
        tensors = norm.make((3, 5), (5,), torch.float64, parameters=parameters)
        kt.gradcheck(norm.ours((5,), 1e-3), *(t.requires_grad_() for t in tensors))


@norms
@kt.devices
def test_sizes_of_other_integer_types(device: str, norm: Norm) -> None:
    tensors = norm.make((3, 8), (8,), device=device)
    results = kt.as_tuple(norm.ours((torch.tensor(8),))(*tensors))  # type: ignore[arg-type]
    for got, want in zip(results, kt.as_tuple(norm.ours((8,))(*tensors)), strict=True):
        assert torch.equal(got, want)


@norms
@kt.devices
def test_batches_of_gradients(device: str, norm: Norm) -> None:
    tensors = [t.requires_grad_() for t in norm.make((3, 8), (8,), device=device)]
    result = kt.as_tuple(norm.ours((8,))(*tensors))[0]
    upstream = kt.make(2, 3, 8, device=device)
    got = torch.autograd.grad(result, tensors, upstream, is_grads_batched=True, retain_graph=True)
    for place, grad in enumerate(upstream):
        want = torch.autograd.grad(result, tensors, grad, retain_graph=True)
        for one, other in zip(got, want, strict=True):
            kt.same(one[place], other)


@norms
def test_function_transforms(norm: Norm) -> None:
    tensors = norm.make((4, 8), (8,))

    def loss(function: Callable[..., Any]) -> Callable[..., Tensor]:
        return lambda *given: sum((r**3).sum() for r in kt.as_tuple(function(*given)))

    places = tuple(range(len(tensors)))
    found = torch.func.grad(loss(norm.ours((8,))), places)(*tensors)
    wanted = torch.func.grad(loss(norm.eager((8,))), places)(*tensors)
    for got, want in zip(found, wanted, strict=True):
        kt.same(got, want, rtol=1e-3, atol=1e-4)


@norms
@kt.devices
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_calls_the_operator(dynamic: bool, device: str, norm: Norm) -> None:
    torch._dynamo.reset()
    tensors = [t.requires_grad_() for t in norm.make((3, 8), (8,), device=device)]
    compiled = torch.compile(norm.ours((8,)), backend="aot_eager", fullgraph=True, dynamic=dynamic)
    results = kt.as_tuple(compiled(*tensors))
    wanted = kt.as_tuple(norm.eager((8,))(*tensors))
    ones = [torch.ones_like(r) for r in results]
    for got, want in zip(
        [*results, *torch.autograd.grad(results, tensors, ones)],
        [*wanted, *torch.autograd.grad(wanted, tensors, ones)],
        strict=True,
    ):
        kt.same(got, want)


@norms
@kt.devices
def test_autocast_computes_in_float32(device: str, norm: Norm) -> None:
    tensors = norm.make((3, 8), (8,), torch.bfloat16, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        results = kt.as_tuple(norm.ours((8,))(*tensors))
    wanted = kt.as_tuple(norm.eager((8,))(*(t.float() for t in tensors)))
    for got, want in zip(results, wanted, strict=True):
        assert got.dtype is torch.float32
        kt.same(got, want)


# -- errors --------------------------------------------------------------------------------------


@norms
def test_errors_name_the_argument(norm: Norm) -> None:
    function = getattr(tk, norm.name)
    x, w = torch.randn(2, 8), torch.randn(8)
    rows: tuple[Any, ...] = (x, x) if norm.added else (x,)
    cases: list[tuple[tuple[Any, ...], type[Exception], str]] = [
        ((*rows, (7,)), tk.ShapeError, r"TS-K001.*`input` has shape \(2, 8\).*\(7,\)"),
        ((*rows, (3, 2, 8)), tk.ShapeError, r"`input` has shape \(2, 8\)"),
        ((*rows, (8,), torch.randn(7)), tk.ShapeError, r"`weight` has shape \(7,\)"),
        ((*rows, (8,), torch.randn(1, 8)), tk.ShapeError, r"`weight`"),
        ((*rows, ()), tk.ArgumentTypeError, r"`normalized_shape` is empty"),
        ((*rows, 8), tk.ArgumentTypeError, r"`normalized_shape` is of type int.*tuple or list"),
        ((*rows, (8.0,)), tk.ArgumentTypeError, r"`normalized_shape` is \(8.0,\).*list of ints"),
        ((*rows, ["8"]), tk.ArgumentTypeError, r"`normalized_shape` is \['8'\]"),
        ((*(r.to_sparse() for r in rows), (8,)), tk.ArgumentTypeError, r"`input` is .*sparse_coo"),
        (("x", *rows[1:], (8,)), tk.ArgumentTypeError, r"`input` is of type str"),
        ((*rows, (8,), 1.0), tk.ArgumentTypeError, r"`weight` is of type float"),
        ((*(r.int() for r in rows), (8,)), tk.DtypeError, r"`input` has dtype torch.int32; acc"),
        ((*rows, (8,), w.int()), tk.DtypeError, r"`weight` has dtype torch.int32"),
        ((*rows, (8,), w.to("meta")), tk.DeviceError, r"`weight` is on meta; it must be on cpu"),
    ]
    if norm.added:
        cases += [
            ((x, x[:1], (8,)), tk.ShapeError, r"`residual` has shape \(1, 8\).*\(2, 8\)"),
            ((x, x.half(), (8,)), tk.DtypeError, r"`residual` has dtype torch.float16; .* float32"),
            ((x, None, (8,)), tk.ArgumentTypeError, r"`residual` is of type NoneType"),
            ((x, x.to("meta"), (8,)), tk.DeviceError, r"`residual` is on meta"),
        ]
    if norm.mean:
        cases += [
            ((*rows, (8,), w, torch.randn(7)), tk.ShapeError, r"`bias` has shape \(7,\)"),
            ((*rows, (8,), w, 2), tk.ArgumentTypeError, r"`bias` is of type int"),
            ((*rows, (8,), w, w, None), tk.ArgumentTypeError, r"`eps` is of type NoneType"),
        ]
    else:
        cases.append(((*rows, (8,), w, "a"), tk.ArgumentTypeError, r"`eps` is of type str"))
    for arguments, error, message in cases:
        with pytest.raises(error, match=message):
            function(*arguments)


# -- tables --------------------------------------------------------------------------------------

WIDTHS = [1, 15, 16, 100, 768, 4096, 5000, 16384, 16385, 32769, 100_000, 10**6]


@norms
@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_all_configurations_are_accepted(kernel: str, norm: Norm) -> None:
    for width in WIDTHS:
        case = Case(kernel, config.width_class(width), torch.bfloat16, norm.name)
        for choice in (config.derived(case), *config.candidates(case)):
            assert config.accepts(case, choice), (case, choice)
            assert choice.block_m * choice.block_n <= 64 * 32 * choice.num_warps, "spills"
    case = Case(kernel, 128, torch.bfloat16, norm.name)
    for wrong in (Config(1, 96, 4), Config(1, 128, 64), Config(0, 128, 4), Config(1, 128, 4, 9)):
        assert not config.accepts(case, wrong)


# -- what only a GPU or a compiler can show ------------------------------------------------------


@norms
@kt.on_gpu
@pytest.mark.parametrize("width", [64, 768, 1024, 4096, 5000, 8192, 16384, 32768, 65536, 131072])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_real_sizes(width: int, dtype: torch.dtype, norm: Norm) -> None:
    torch.manual_seed(0)
    tensors = norm.make((2**23 // width + 1, width), (width,), dtype, "cuda")
    kt.no_worse_than_eager(norm.ours((width,)), norm.eager((width,)), tensors)


@norms
@kt.large
def test_more_than_2_to_the_31_elements(norm: Norm) -> None:
    rows, width = 2**31 // 4096 + 3, 4096
    x = torch.randn(rows, width, dtype=torch.bfloat16, device="cuda")
    parameters = [torch.randn(width, dtype=x.dtype, device="cuda") for _ in range(1 + norm.mean)]
    inputs = [x, x] if norm.added else [x]
    results = kt.as_tuple(norm.ours((width,))(*inputs, *parameters))
    ends = [t[-4:] for t in inputs]
    for got, want in zip(
        results, kt.as_tuple(norm.eager((width,))(*ends, *parameters)), strict=True
    ):
        kt.same(got[-4:], want, rtol=2e-2, atol=2e-2)
    bias = parameters[1] if norm.mean else None
    above = x if norm.added else None
    shared = (width,), parameters[0], bias, EPS, norm.mean
    dx, _, _ = run.backward(norm.name, results[0], above, x, *shared, True, True, norm.mean)
    end = results[0][-4:], None if above is None else above[-4:], x[-4:]
    kt.same(dx[-4:], reference.backward(*end, *shared)[0], rtol=2e-2, atol=2e-2)


@kt.on_gpu
def test_current_stream_and_graph_capture() -> None:
    x, weight = torch.randn(64, 512, device="cuda"), torch.randn(512, device="cuda")
    want = tk.rms_norm(x, (512,), weight)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = tk.rms_norm(x, (512,), weight)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(got, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = tk.rms_norm(x, (512,), weight)
    captured.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, want)


def launched(norm: Norm, kernel: str, width: int, dtype: torch.dtype, choice: Any = None) -> None:
    """Launches one of the kernels on uninitialised memory."""
    x, weight = torch.empty(64, width, dtype=dtype), torch.empty(width, dtype=dtype)
    above, bias = x if norm.added else None, weight if norm.mean else None
    shared = (width,), weight, bias, EPS, norm.mean
    if kernel == "forward":
        run.forward(norm.name, x, above, *shared, choice)
    else:
        run.backward(norm.name, x, above, x, *shared, True, True, norm.mean, choice)


@norms
@kt.needs_compiler
@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_resources(kernel: str, norm: Norm) -> None:
    cases = [(4096, torch.bfloat16)]
    if norm.name in ("rms_norm", "add_layer_norm"):  # the least and the most registers
        cases += [(128, torch.bfloat16), (16384, torch.bfloat16)]
        cases += [(5000, torch.float32), (100_000, torch.bfloat16)]
    for width, dtype in cases:
        name = f"{kernel} {width} {str(dtype).removeprefix('torch.')}"
        kernels = kt.check_resources(norm.name, name, lambda: launched(norm, kernel, width, dtype))
        ptx = kernels[0].asm["ptx"]
        assert "ld.global.v4.b32" in ptx or "cp.async.cg" in ptx, "16 bytes a thread"


@kt.needs_compiler
@pytest.mark.parametrize("kernel", ["forward", "backward"])
@pytest.mark.parametrize("norm", NORMS[::3], ids=lambda norm: norm.name)  # least and most registers
def test_no_candidate_spills(norm: Norm, kernel: str) -> None:
    for width in (256, 8192, 16384) if norm.added else (16384,):
        for choice in config.candidates(Case(kernel, width, torch.bfloat16, norm.name)):
            with kt.compiled_for_sm90() as kernels:
                launched(norm, kernel, width, torch.bfloat16, choice)
            for _, compiled in kernels:
                assert kt._usage(compiled)["stack"] == 0, (width, choice)


@kt.needs_compiler
@pytest.mark.parametrize(
    ("chip", "width", "dtype"),
    [(90, 16384, torch.float32), (80, 16384, torch.bfloat16), (89, 9000, torch.half)],
)
def test_wide_gradients_fit_into_shared_memory(chip: int, width: int, dtype: torch.dtype) -> None:
    x = torch.empty(4, width, dtype=torch.bfloat16 if dtype is torch.float32 else dtype)
    weight = torch.empty(width, dtype=dtype)
    for more in (None, x):
        name = "rms_norm" if more is None else "add_rms_norm"
        with kt.compiled_for(chip) as kernels:
            needed = (True, True, False)
            run.backward(name, x, more, x, (width,), weight, None, EPS, False, *needed)
        room = kt.SHARED[chip] * 1024
        assert all(compiled.metadata.shared <= room for _, compiled in kernels)
