"""What the tests of all ops share: devices, errors against float64, determinism, resources.

On the CPU an op's reference runs, or with ``TRITON_INTERPRET=1`` its kernels under Triton's
interpreter; with a GPU the compiled kernels run. The same tests serve all three.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchsmith_kernels._src import launch, tables

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
COMPILED = torch.cuda.is_available() and not INTERPRETED
DEVICES = ["cuda"] if COMPILED else ["cpu"]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Unit roundoff. The interpreter truncates to bfloat16 where hardware rounds.
ROUNDOFF = {
    torch.float64: 2**-53,
    torch.float32: 2**-24,
    torch.float16: 2**-11,
    torch.bfloat16: 2**-7 if INTERPRETED else 2**-8,
}

devices = pytest.mark.parametrize("device", DEVICES)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
#: For tests of what only a GPU can do.
on_gpu = pytest.mark.skipif(not COMPILED, reason="needs a GPU")
#: For tests of kernels, which run under the interpreter too.
needs_kernels = pytest.mark.skipif(
    not (INTERPRETED or COMPILED), reason="needs the interpreter or a GPU"
)
#: For tests of the reference path, which runs without interpreter and GPU alike.
without_interpreter = pytest.mark.skipif(INTERPRETED, reason="about the path without kernels")
large = pytest.mark.large

Function = Callable[..., Tensor | Sequence[Tensor]]


def make(
    *shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu", scale: float = 1.0
) -> Tensor:
    """Normal random values, the same on every device for one seed."""
    return (torch.randn(shape, dtype=torch.float64) * scale).to(dtype).to(device)


def as_tuple(result: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A result with one or more tensors as a tuple."""
    return (result,) if isinstance(result, Tensor) else tuple(result)


def error(got: Tensor, want: Tensor) -> float:
    """``norm(got - want) / norm(want)``, in float64."""
    difference = (got.double() - want.double()).norm()
    return float(difference / want.double().norm().clamp_min(1e-30))


def grads(function: Function, tensors: Sequence[Tensor], upstream: Sequence[Tensor]) -> list[Any]:
    """Results of ``function`` and the gradients of the floating point ``tensors``."""
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
    for leaf, tensor in zip(leaves, tensors, strict=True):
        if leaf.stride() != tensor.stride():
            leaf.data = tensor.detach()  # keep the layout that the test is about
    results = as_tuple(function(*leaves))
    wanted = [leaf for leaf in leaves if leaf.is_floating_point()]
    weights = [w.to(r.dtype) for w, r in zip(upstream, results, strict=True)]
    found = torch.autograd.grad(results, wanted, weights)
    return [*(r.detach() for r in results), *found]


def no_worse_than_eager(
    ours: Function,
    eager: Function,
    tensors: Sequence[Tensor],
    *,
    backward: bool = True,
    factor: float = 1.2,
    exact: Function | None = None,
    slack: float = 1.0,
) -> None:
    """Asserts that ``ours`` is as close to float64 as ``eager`` is in the inputs' dtype.

    Compares results and all gradients: dtype, shape, and relative error against ``exact`` (by
    default ``eager``) on float64 inputs. The error may be ``factor`` times eager's, or ``slack``
    roundings of the result's dtype where eager happens to be exact.

    Args:
        ours: the function under test.
        eager: plain PyTorch, same arguments.
        tensors: the arguments; gradients are taken for the floating point ones.
        backward: whether to compare gradients as well.
        factor: see above.
        exact: what runs on float64 inputs.
        slack: see above.
    """
    truth = exact or eager
    doubles = [t.double() if t.is_floating_point() else t for t in tensors]
    if backward:
        with torch.no_grad():
            shapes = [r.shape for r in as_tuple(truth(*doubles))]
        upstream = [make(*shape, dtype=torch.float64).to(tensors[0].device) for shape in shapes]
        low = tensors[0].dtype
        upstream = [u.to(low).double() for u in upstream]
        got, theirs, want = (
            grads(f, given, upstream)
            for f, given in ((ours, tensors), (eager, tensors), (truth, doubles))
        )
    else:
        with torch.no_grad():
            got, theirs, want = (
                list(as_tuple(f(*given)))
                for f, given in ((ours, tensors), (eager, tensors), (truth, doubles))
            )
    for place, (mine, peer, true) in enumerate(zip(got, theirs, want, strict=True)):
        assert (mine.dtype, mine.shape) == (peer.dtype, peer.shape), f"tensor {place}"
        limit = factor * error(peer, true) + slack * ROUNDOFF[mine.dtype]
        found = error(mine, true)
        assert found <= limit, f"tensor {place}: error {found:.3e}, eager {error(peer, true):.3e}"


def same(got: Tensor, want: Tensor, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """Asserts equal values up to a tolerance, NaN and infinity included."""
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


def bit_equal(function: Callable[[], Tensor | Sequence[Tensor]]) -> None:
    """Asserts that two runs give the same bits."""
    first, second = as_tuple(function()), as_tuple(function())
    for a, b in zip(first, second, strict=True):
        kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.itemsize]
        assert torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def gradcheck(function: Callable[..., Any], *tensors: Tensor, second: bool = True) -> None:
    """float64 numerical gradients, and those of the gradients."""
    assert torch.autograd.gradcheck(function, tensors, eps=1e-6, atol=1e-5, fast_mode=False)
    if second:
        assert torch.autograd.gradgradcheck(function, tensors, eps=1e-6, atol=1e-4)


# -- real code for sm_90 without a GPU -----------------------------------------------------------

needs_compiler = pytest.mark.skipif(
    find_spec("triton") is None or INTERPRETED, reason="needs triton's compiler"
)
RESOURCES = Path(__file__).parent / "resources_sm90"


def _usage(compiled: Any) -> dict[str, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [str(tool), "-res-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return {
        "registers": int(found[1]),
        "stack": int(found[2]),
        "shared": int(compiled.metadata.shared),
        "num_warps": int(compiled.metadata.num_warps),
    }


#: KiB of shared memory that one program may take.
SHARED = {80: 163, 89: 99, 90: 227}


@contextmanager
def compiled_for(chip: int) -> Iterator[list[tuple[str, Any]]]:
    """Launches on CPU tensors inside compile for a GPU instead; yields (name, kernel) pairs.

    Results of such launches are uninitialised memory.
    """
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", chip, 32)
    room = SHARED[chip] * 1024
    found: list[tuple[str, Any]] = []

    def record(kernel: Any, grid: Any, args: Any, constants: Any, *options: Any) -> None:
        compiled = kernel.compile_within(room, args, constants, *options, target=target)
        found.append((kernel.name, compiled))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_on_cpu", record)
        patch.setattr(launch, "sm_count", lambda device: 132)
        if chip != 90:
            patch.setattr(launch, "capability", lambda device: chip)
        tables.forget()
        yield found
    tables.forget()


def compiled_for_sm90() -> AbstractContextManager[list[tuple[str, Any]]]:
    """``compiled_for`` the GPU whose tables ship."""
    return compiled_for(90)


def check_resources(op: str, case: str, function: Callable[[], object]) -> list[Any]:
    """Compiles what ``function`` launches on CPU tensors for sm_90 and checks its resources.

    No register may spill, one program must fit a multiprocessor, and registers and shared memory
    must equal what ``resources_sm90/<op>.json`` records for this version of triton.
    ``TORCHSMITH_ACCEPT=1`` rewrites the record, but accepts no spill: one that a version's compiler
    makes has to be written there by hand.

    Returns:
        The compiled kernels, for further checks of ``.asm["ptx"]``.
    """
    import triton

    with compiled_for_sm90() as kernels:
        function()
    assert kernels, "nothing was launched"
    version = ".".join(triton.__version__.split(".")[:2])
    path = RESOURCES / f"{op}.json"
    table = json.loads(path.read_text()) if path.exists() else {}
    got: dict[str, dict[str, int]] = {}
    for name, compiled in kernels:
        usage = _usage(compiled)
        label = f"{case}: {name}" if f"{case}: {name}" not in got else f"{case}: {name} again"
        got[label] = usage
        spilled = table.get(version, {}).get(label, {}).get("stack", 0)
        assert usage["stack"] <= spilled, f"{name}: registers spill to local memory"
        assert usage["registers"] * 32 * usage["num_warps"] <= 65536, f"{name} does not fit"
        assert usage["shared"] <= 227 * 1024, f"{name} does not fit"
    if os.environ.get("TORCHSMITH_ACCEPT") == "1":
        table.setdefault(version, {}).update(got)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    elif version in table:
        # Another version of triton allocates registers differently; the limits hold for all.
        recorded = {name: table[version].get(name) for name in got}
        assert got == recorded
    return [compiled for _, compiled in kernels]
