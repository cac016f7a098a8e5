"""Plans print as text, and the log channels show them."""

import logging

import torch
from plans import trace
from torchsmith_fx_backend._src.records.plans import print_plan, tell_lowered
from torchsmith_fx_backend._src.schedule import schedule_graph

A = torch.randn(4, 4)


def graph():
    return trace(lambda x, w: torch.mm(torch.mm(x, w).relu(), w).relu().t(), A, A + 1, decompose={})


def test_plan_as_text():
    text = print_plan(schedule_graph(graph()))
    lines = text.splitlines()
    assert lines[0] == "def run(x_1, w_1):"
    assert "    mm = aten.mm.default(x_1, w_1)" in lines
    assert sum("kernel0(" in line for line in lines) == 2  # one kernel, launched twice
    assert lines[-1].startswith("    return (")


def test_logs(caplog):
    with caplog.at_level(logging.DEBUG, "torchsmith"):
        tell_lowered(schedule_graph(graph(), check=True))
    names = {record.name for record in caplog.records if record.name.startswith("torchsmith")}
    assert names == {"torchsmith.loops", "torchsmith.schedule"}
    assert "maximum(" in caplog.text
