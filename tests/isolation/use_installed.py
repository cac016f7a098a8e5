"""Use one installed package for real, and fail if a sibling that it must not need is there."""

from __future__ import annotations

import importlib.util
import sys

import torch


def use_guards() -> None:
    import torchsmith_guards as guards

    source = guards.LocalSource("x")
    checks = guards.GuardSet()
    checks.add(guards.Guard(source, guards.GuardKind.CONSTANT, 3, why="test"))
    checker = checks.compile(["x"], {})
    assert checker.check(3)
    assert not checker.check(4)


def use_tracer() -> None:
    import torchsmith_tracer as tracer

    def double(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print("between", flush=True)
        return y + 1

    report = tracer.explain(double)(torch.ones(3))
    assert report.graph_count == 2, str(report)
    assert report.html().rstrip().endswith("</html>"), "the templates are in the wheel"
    tracer.clear_metrics()
    compiled = tracer.compile(double, backend="eager")
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    assert tracer.metrics().counter("graphs", "total") == 2


def main() -> None:
    name = sys.argv[1]
    absent = {
        "torchsmith_guards": ["torchsmith_tracer", "torchsmith_kernels", "torchsmith_fx_backend"],
        "torchsmith_tracer": ["torchsmith_kernels", "torchsmith_fx_backend", "triton"],
    }[name]
    present = [module for module in absent if importlib.util.find_spec(module)]
    # torch's CUDA build brings triton along; then only our own siblings must be absent
    if torch.version.cuda is not None and "triton" in present:
        present.remove("triton")
    assert not present, f"{present} must not be installed here"
    {"torchsmith_guards": use_guards, "torchsmith_tracer": use_tracer}[name]()
    print(f"{name}: works alone")


if __name__ == "__main__":
    main()
