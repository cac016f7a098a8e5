"""Which axis is the inner loop, and which inner loops ask for vectors."""

import re
import subprocess

import pytest
import torch
import torch.nn.functional as F
import torchsmith_guards as guards
from torch import fx
from torchsmith_fx_backend import compile_graph
from torchsmith_fx_backend._src.codegen.c.functions import prelude
from torchsmith_fx_backend._src.runtime.compiler import find_compiler

LOOP = re.compile(
    r"#pragma omp (?:parallel for )?simd[^\n]*\n *for \(int64_t (\w+) = [^\n]*\n(.*?)\n *\}", re.S
)


def vector_loops(program, x):
    """(axis, body) of each loop that asks for vectors, in kernels whose results are right."""
    with torch.no_grad():
        compiled = compile_graph(fx.symbolic_trace(program), [x])
        torch.testing.assert_close(compiled(x), program(x))
    return [loop for _, source in compiled.kernels for loop in LOOP.findall(source)]


@pytest.mark.parametrize("width", [8, 16, 30, 112])
def test_images_are_walked_along_their_rows(width):
    loops = vector_loops(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(2, 3, width, width))
    inner = [axis for axis, body in loops if f"2 * {axis}" in body]
    assert 2 * len(inner) > len(loops)  # a border may be a column


def test_several_far_loads_of_one_table_are_no_vectors():
    """gcc would take them for columns and spend seconds on it."""
    for far, near in ((1024, False), (8, True)):
        loops = vector_loops(lambda x: x[:, 0] + x[:, 1] + x[:, 2] * x[:, 3], torch.randn(500, far))
        assert bool(loops) is near


def rows(x):
    y = x * 2 + (x + ROWS)
    return F.layer_norm(y, (8,)), y


ROWS = torch.randn(256, 8)


def test_a_far_load_that_is_repeated_is_no_vector():
    """For gcc it is several of one table, too: it took 25 seconds for this kernel."""
    loops = vector_loops(rows, torch.randn(64, 256, 8))
    assert any("2048 *" in body for _, body in loops)
    assert not any("2048 *" in body and "part" in body for _, body in loops)


def test_lanes_do_not_step_far_along_an_axis_of_unknown_length():
    fake = guards.FakeMode(guards.ShapeEnv()).fakeify(
        torch.randn(5, 256, 8), guards.LocalSource("x"), {0}
    )
    with torch.no_grad():
        compiled = compile_graph(fx.symbolic_trace(rows), [fake])
        for batch in (5, 70):
            x = torch.randn(batch, 256, 8)
            torch.testing.assert_close(compiled(x), rows(x))
    bodies = [body for _, source in compiled.kernels for _, body in LOOP.findall(source)]
    assert any("i1 = low + l" in body for body in bodies)
    assert not any("i0 = low + l" in body for body in bodies)


@pytest.mark.parametrize(("count", "length"), [(10, 4), (5, 3), (20, 2)])
def test_a_few_short_rows_fill_vectors_across_the_batch(count, length):
    loops = vector_loops(lambda x: (x - x[:, :1]).exp().sum(-1), torch.randn(256, count, length))
    assert {axis for axis, body in loops if "ts_exp" in body} == {"l"}
    assert all("i0 = low + l" in body for _, body in loops)


def test_whole_vectors_of_a_row_are_read_along_it():
    loops = vector_loops(lambda x: (x - x[:, :1]).exp().sum(-1), torch.randn(256, 16, 8))
    assert [axis for axis, body in loops if "ts_exp" in body] == ["i2"]


@pytest.mark.parametrize("size", [24, 40])
def test_lanes_share_what_is_the_same_for_all_of_them(size):
    """One step of a linear chain: scores of the states, and of the ways between them."""
    ways = torch.randn(size, size)
    loops = vector_loops(lambda x: torch.logsumexp(x[:, :, None] + ways, 1), torch.randn(16, size))
    exponentials = [body for _, body in loops if "ts_exp" in body]
    assert exponentials
    assert not any(f"{size} * {axis}" in body for axis, body in loops)


@pytest.mark.parametrize("size", [24, 40])
def test_rows_are_kept_where_two_passes_need_what_is_dear(size):
    """Here a walk across would take each exponential twice."""
    ways = torch.randn(size, size)
    program = lambda x: torch.logsumexp((x[:, :, None] + ways).exp(), 1)  # noqa: E731
    loops = vector_loops(program, torch.randn(16, size))
    assert sum(body.count("ts_exp") for _, body in loops) == 2


SAME_FOR_ALL_LANES = {
    # name -> (program of columns, how many exponentials or logarithms are taken of a column)
    "of a number": (lambda x, w: (x * w[0, 0].exp()).amax(0), 0),
    "of a row": (lambda x, w: (x * w.exp()).sum(0), 0),
    "in two passes": (lambda x, w: (y := x + w.exp().log1p(), y - y.mean(0))[1].sum(0), 0),
    "beside what differs": (lambda x, w: (x.exp() * w.exp()).sum(0), 1),
    "before a scan": (lambda x, w: (x + w.exp()).cumsum(0), 0),
    "of a scan": (lambda x, w: (w + x[0] * 0).cumsum(0).exp(), 1),
}


@pytest.mark.parametrize("name", SAME_FOR_ALL_LANES)
def test_what_is_dear_and_the_same_for_all_lanes_is_taken_outside(name):
    """gcc leaves it in the loop."""
    program, inside = SAME_FOR_ALL_LANES[name]
    w = torch.randn(12, 1)
    loops = vector_loops(lambda x: program(x, w), torch.randn(12, 500))
    assert loops
    assert max(len(re.findall(r"ts_(?:exp|log)", body)) for _, body in loops) == inside


EXTREMES = {
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "minimum in double": lambda x: torch.minimum(x.double(), x.flip(0).double()),
    "bounds from memory": lambda x: x.clamp(x[:1], x[1:2]),
    "pool": lambda x: F.max_pool2d(x[None], 3, 1),
    "argmax of rows": lambda x: x.argmax(-1),
    "values and places": lambda x: ((found := x.relu().max(-1))[0], found[1]),
    "argmin of columns": lambda x: x.argmin(0),
    "argmax of whole numbers": lambda x: (x * 9).int().argmax(-1),
}


def vector_lines(compiled, tmp_path):
    """The lines of each unit, and the numbers of those where gcc says that a loop is vectors."""
    compiler = find_compiler()
    if compiler is None or "gcc" not in subprocess.getoutput(f"{compiler.command[0]} -v"):
        pytest.skip("gcc alone tells which loops are vectors")
    for number, (_, source) in enumerate(compiled.kernels):
        file = tmp_path / f"{number}.c"
        file.write_text(f"{prelude(source)}\n{source}")
        flags = [f for f in compiler.flags[0] if not f.startswith(("-Wl", "/"))]
        command = [*compiler.command, *flags, "-fno-math-errno", "-fno-trapping-math", "-fwrapv"]
        command += ["-fopt-info-vec-optimized", "-c", str(file), "-o", str(tmp_path / "object")]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        vectors = {int(n) for n in re.findall(rf"{file}:(\d+):\d+: optimized: loop", told)}
        yield file.read_text().splitlines(), vectors


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_that_keep_nan_are_vector_code(name, tmp_path):
    x = torch.randn(96, 160)
    x[3, 5] = x[7, 0] = x[7, 9] = float("nan")
    with torch.no_grad():
        compiled = compile_graph(fx.symbolic_trace(EXTREMES[name]), [x])
        wanted = EXTREMES[name](x)
        torch.testing.assert_close(compiled(x), wanted, equal_nan=True, rtol=0, atol=0)
    for lines, vectors in vector_lines(compiled, tmp_path):
        extremes = [
            i for i, line in enumerate(lines, 1) if re.search(r"= ts_m|int wins\d+ =", line)
        ]
        for place in extremes:
            start = max(i for i in range(1, place) if "for (" in lines[i - 1])
            assert not vectors.isdisjoint(range(start, place + 1)), lines[start - 1 : place]


VECTORS = {
    "uniform draws": torch.rand_like,
    "normal draws": torch.randn_like,
    "dropout": F.dropout,
    "a comparison as a number": lambda x: (x > 0).float() * x,
    "in double": lambda x: (x > 0).double(),
    "in half": lambda x: (x > 0).bfloat16(),
    "long integers": lambda x: (x > 0).long().float() * x,
    "what is not so": lambda x: x * ~(x > 0.5),
    "share of a mask": lambda x: ((x > 0) == (x < 1)).float().mean(-1),
}


@pytest.mark.parametrize("name", VECTORS)
def test_draws_and_masks_as_numbers_are_vector_code(name, tmp_path):
    x = torch.randn(96, 160)
    compiled = compile_graph(fx.symbolic_trace(lambda x: (VECTORS[name](x),)), [x])
    units = list(vector_lines(compiled, tmp_path))
    assert units
    for lines, vectors in units:
        first = min(i for i, line in enumerate(lines, 1) if "for (" in line)
        assert not vectors.isdisjoint(range(first, len(lines) + 1)), lines


WIDTHS = {
    "exponentials": (lambda x: (x * 2).exp(), True),
    "16-bit floats": (lambda x: x.bfloat16() * 2, True),
    "what memory bounds": (lambda x: x * 2 + 1, False),
    "moved": (lambda x: x.T.contiguous() + 1, False),
    "rows that are reduced": (lambda x: x.exp().sum(-1), False),
    "bounds": (lambda x: x.clamp(-1, 1), True),
    "one bound": (lambda x: x.relu(), False),
    "bounds and a division": (lambda x: x.clamp(-1, 1) / (x + 9), False),
    "long rows": (lambda x: x.view(40, 480).amax(-1), True),
    "exponentials of long rows": (lambda x: x.view(40, 480).softmax(-1), True),
    "sums of long rows": (lambda x: x.view(40, 480).sum(-1), True),
    "long rows that are stored": (
        lambda x: x.view(40, 480) - x.view(40, 480).amax(-1, True),
        False,
    ),
    "long columns": (lambda x: x.amax(0), False),
}


@pytest.mark.parametrize("name", WIDTHS)
def test_wide_registers_are_for_what_computes(name):
    """Elsewhere they gain nothing, and rows take longer to reduce."""
    program, wide = WIDTHS[name]
    x = torch.randn(400, 48)
    with torch.no_grad():
        compiled = compile_graph(fx.symbolic_trace(program), [x])
        torch.testing.assert_close(compiled(x), program(x))
    assert [("TS_WIDE void" in source) for _, source in compiled.kernels] == [wide]


def test_wide_kernels_fill_the_registers_that_there_are(tmp_path):
    compiler = find_compiler()
    if compiler is None or "gcc" not in subprocess.getoutput(f"{compiler.command[0]} -v"):
        pytest.skip("other compilers than gcc decide by themselves")
    macros = [*compiler.command, "-march=native", "-dM", "-E", "-x", "c", "/dev/null"]
    if "__AVX512F__" not in subprocess.run(macros, capture_output=True, text=True).stdout:
        pytest.skip("a processor without AVX-512")
    with torch.no_grad():
        x = torch.randn(4096)
        compiled = compile_graph(fx.symbolic_trace(lambda x: (x * 2).exp()), [x])
    ((_, source),) = compiled.kernels
    file = tmp_path / "kernel.c"
    file.write_text(f"{prelude(source)}\n{source}")
    flags = [f for f in compiler.flags[0] if not f.startswith(("-Wl", "/"))]
    command = [*compiler.command, *flags, "-fno-math-errno", "-fno-trapping-math", "-S"]
    subprocess.run([*command, str(file), "-o", str(tmp_path / "text")], check=True)
    assert "zmm" in (tmp_path / "text").read_text()
