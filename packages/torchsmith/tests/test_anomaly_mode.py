"""Anomaly mode while compiled programs are differentiated."""

import pytest
import torch
import torchsmith


@pytest.mark.filterwarnings("ignore:Anomaly Detection|Error detected in")
@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("check_nan", [False, True])
def test_backward_passes_under_anomaly_mode(forward, check_nan):
    def f(x):
        return (x.sqrt() * 2).sum()

    compiled = torchsmith.compile(f)
    for value in (1.0, 4.0, 0.25):
        gradients = []
        for run in (f, compiled):
            x = torch.full((3,), value, requires_grad=True)
            with torch.autograd.set_detect_anomaly(forward, check_nan):
                loss = run(x)
            with torch.autograd.set_detect_anomaly(True, check_nan):
                loss.backward()
            gradients.append(x.grad)
        assert torch.equal(*gradients)


@pytest.mark.filterwarnings("ignore:Anomaly Detection|Error detected in")
def test_nans_are_found_in_compiled_backward_passes():
    compiled = torchsmith.compile(lambda x: (x.sqrt() * 0).sum())
    for _ in range(2):
        x = torch.zeros(3, requires_grad=True)
        with torch.autograd.set_detect_anomaly(True):
            with pytest.raises(RuntimeError, match="returned nan values in its 0th output"):
                compiled(x).backward()
        compiled(x).backward()
        assert x.grad.isnan().all()
