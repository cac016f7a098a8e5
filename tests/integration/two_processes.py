"""Programs of two processes, eager or compiled: what each rank sees, as JSON.

python two_processes.py eager|compiled RANK FILE

Each program is a function of what compiles and of the rank; ``FILE`` is where the processes meet.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torchsmith
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

Compiler = Callable[[Any], Any]


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


class OneOfTwo(nn.Module):
    """A call leaves one of the two without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4)])
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layers[self.calls % 2](x)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))


def data(rank: int, step: int, rows: int = 4) -> torch.Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(10 * rank + step))


def whole(tensor: torch.Tensor) -> list[float]:
    tensor = tensor.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).flatten().tolist()


def train(
    module: Any,
    called: Any,
    rank: int,
    *,
    varying: bool = False,
    accumulates: bool = False,
    make: Callable[[Iterable[nn.Parameter]], Any] = lambda p: torch.optim.SGD(p, 0.1, 0.9),
) -> list[list[float]]:
    """Losses of four steps, then the parameters."""
    optimizer, losses = make(module.parameters()), []
    for step in range(4):
        steps = not accumulates or step % 2
        with nullcontext() if steps else module.no_sync():
            loss = called(data(rank, step, 4 + varying * (rank + step))).square().mean()
            loss.backward()
        if steps:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return [losses, *map(whole, module.parameters())]


def data_parallel(compiler: Compiler, rank: int, inner: Any = None, **options: Any) -> Any:
    module = DistributedDataParallel(model() if inner is None else inner, **options)
    return train(module, compiler(module), rank)


def compiled_inside(compiler: Compiler, rank: int) -> Any:
    module = DistributedDataParallel(compiler(model()))
    return train(module, module, rank)


def without_synchronization(compiler: Compiler, rank: int) -> Any:
    module = DistributedDataParallel(model())
    return train(module, compiler(module), rank, accumulates=True)


def varying_batches(compiler: Compiler, rank: int) -> Any:
    module = DistributedDataParallel(model())
    return train(module, compiler(module), rank, varying=True)


def communication_hook(compiler: Compiler, rank: int) -> Any:
    module = DistributedDataParallel(model())
    module.register_comm_hook(None, fp16_compress_hook)
    return train(module, compiler(module), rank)


def redundancy_optimizer(compiler: Compiler, rank: int) -> Any:
    def make(parameters: Iterable[nn.Parameter]) -> Any:
        return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.SGD, lr=0.1)

    module = DistributedDataParallel(model())
    return train(module, compiler(module), rank, make=make)


def whole_step(compiler: Compiler, rank: int) -> Any:
    module = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(module.parameters(), 0.1, 0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = compiler(step)
    return [whole(step(data(rank, i))) for i in range(4)] + [*map(whole, module.parameters())]


def sharded(compiler: Compiler, rank: int, inside: bool = False) -> Any:
    module = model()
    for layer in (module[0], module[3]):
        if inside and compiler is not eager:
            layer.compile(backend="smith")
        fully_shard(layer)
    fully_shard(module)
    return train(module, module if inside else compiler(module), rank)


def tensor_parallel(compiler: Compiler, rank: int) -> Any:
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    module = parallelize_module(module, init_device_mesh("cpu", (2,)), plan)
    return train(module, compiler(module), 0)


def loss_in_parallel(compiler: Compiler, rank: int) -> Any:
    """The gradient of what lies between two layers comes from a collective that is under way."""
    last = ColwiseParallel(
        input_layouts=Shard(-1), output_layouts=Shard(-1), use_local_output=False
    )
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 10))
    mesh = init_device_mesh("cpu", (2,))
    module = parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": last})
    loss = compiler(lambda x, y: nn.functional.cross_entropy(module(x), y))
    found: list[Any] = []
    for step in range(2):
        with loss_parallel():
            value = loss(data(0, step), torch.arange(4))
            value.backward()
        found += [whole(value), *(whole(p.grad) for p in module.parameters())]
    return found


def distributed_tensors(compiler: Compiler, rank: int) -> Any:
    mesh = init_device_mesh("cpu", (2,))
    w = distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)]).requires_grad_()
    x = distribute_tensor(torch.randn(4, 8), mesh, [Shard(1)])

    def loss(x: Any, w: Any) -> Any:
        return (x @ w).redistribute(placements=[Replicate()]).sin().sum()

    found = compiler(loss)(x, w)
    found.backward()
    return [whole(found), whole(w.grad), str(w.grad.placements)]


def in_place(compiler: Compiler, rank: int) -> Any:
    def program(x: torch.Tensor) -> object:
        y = x * 2
        dist.all_reduce(y)
        parts = [torch.empty_like(y) for _ in range(2)]
        dist.all_gather(parts, y + rank)
        z = torch.cat(parts)
        dist.broadcast(z, 0)
        waited = x + 1
        handle = dist.all_reduce(waited, async_op=True)
        beside = x.sin()
        handle.wait()
        return z.sin(), waited + beside, dist.get_rank(), dist.get_world_size()

    z, waited, *rest = compiler(program)(torch.full((3,), rank + 1.0))
    return [whole(z), whole(waited), *rest]


def functional(compiler: Compiler, rank: int) -> Any:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = collectives.all_reduce(x * 2, "sum", dist.group.WORLD)
        z = collectives.all_gather_tensor(y + 1, 0, dist.group.WORLD)
        return collectives.reduce_scatter_tensor(z, "sum", 0, dist.group.WORLD) * 2

    return whole(compiler(program)(torch.full((4,), rank + 1.0)))


PROGRAMS: dict[str, Callable[[Compiler, int], Any]] = {
    "data parallel": data_parallel,
    "compiled inside": compiled_inside,
    "static graph": lambda c, r: data_parallel(c, r, static_graph=True),
    "buckets": lambda c, r: data_parallel(c, r, gradient_as_bucket_view=True, bucket_cap_mb=0.0005),
    "unused parameters": lambda c, r: data_parallel(c, r, OneOfTwo(), find_unused_parameters=True),
    "checkpoint": lambda c, r: data_parallel(c, r, Checkpointed(model())),
    "without synchronization": without_synchronization,
    "varying batches": varying_batches,
    "communication hook": communication_hook,
    "redundancy optimizer": redundancy_optimizer,
    "whole step": whole_step,
    "sharded": sharded,
    "sharded, compiled inside": lambda c, r: sharded(c, r, inside=True),
    "tensor parallel": tensor_parallel,
    "loss in parallel": loss_in_parallel,
    "distributed tensors": distributed_tensors,
    "collectives in place": in_place,
    "functional collectives": functional,
}


def eager(program: Any) -> Any:
    return program


def main(how: str, rank: int, place: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    found, graphs = {}, {}
    for name, program in PROGRAMS.items():
        torch.manual_seed(0)
        torchsmith.clear_metrics()
        found[name] = program(eager if how == "eager" else torchsmith.compile, rank)
        graphs[name] = len(torchsmith.metrics().graphs)
    dist.destroy_process_group()
    print(json.dumps({**found, "graphs": graphs}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
