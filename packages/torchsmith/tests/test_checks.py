"""Operators that are there to raise: compiled programs raise where eager does."""

import pytest
import torch
import torchsmith

SINGULAR = torch.zeros(3, 3)
CASES = {
    "cholesky": lambda x: torch.linalg.cholesky(x - 1),
    "inv": lambda x: torch.linalg.inv(x) + 1,
    "solve": lambda x: torch.linalg.solve(x, torch.ones(3)) * 2,
    "assert": lambda x: torch.ops.aten._assert_async(x.any()) or x + 1,
    "after a write": lambda x: (x.clone().add_(1).mul_(0), torch.linalg.inv(x * 2))[1],
}


@pytest.mark.parametrize("fn", CASES.values(), ids=CASES)
def test_checks_without_results_stay(fn, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path))
    with pytest.raises(RuntimeError) as eager:
        fn(SINGULAR)
    compiled = torchsmith.compile(fn)
    for _ in range(2):
        with pytest.raises(type(eager.value)) as own:
            compiled(SINGULAR)
        assert str(own.value) == str(eager.value)
    good = torch.eye(3) * 4 + (1 if fn is CASES["cholesky"] else 0)
    torch.testing.assert_close(compiled(good), fn(good))
