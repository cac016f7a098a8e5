"""``verify=True`` and ``TORCHSMITH_REPRO``: what is compared, said and recorded."""

import json
import warnings
from pathlib import Path

import pytest
import torch
import torchsmith
import torchsmith_tracer
from torchsmith.errors import RecordWarning, VerificationError
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src.passes import DeadCode


def chain(x):
    y = torch.sin(x) + 1
    y = torch.exp(y * 2)
    return y.sum(0) * 3


LINE = chain.__code__.co_firstlineno + 2
X = torch.linspace(-1, 1, 12).reshape(3, 4)


def written(x):
    x.mul_(2)
    return x.relu()


def random(x):
    return torch.nn.functional.dropout(x, 0.5) * torch.rand_like(x)


def attention(x):
    return torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])


def aliased(x):
    return x, x.t(), x[0] + 1


def two_graphs(x):
    y = x.cos()
    torchsmith_tracer.disable(id)(y)
    return y.sin()


RIGHT = [chain, written, random, attention, aliased, two_graphs]


@pytest.mark.parametrize("fn", RIGHT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_right_graphs_pass_and_leave_no_trace(fn, dtype):
    mine, theirs = X.to(dtype), X.to(dtype)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    compiled = torchsmith.compile(fn, verify=True)
    if fn is not random:
        assert torchsmith.same(fn(theirs), compiled(mine), fn(X.double()), equal_nan=True)
        assert torch.equal(mine, theirs)
        assert torch.equal(torch.rand(1), expected)
    else:
        assert compiled(mine).shape == X.shape


def test_gradients_and_several_sizes_pass():
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    compiled = torchsmith.compile(layer, verify=True)
    for rows in (3, 5, 7):
        compiled(torch.randn(rows, 4)).sum().backward()
    assert layer[0].weight.grad is not None


def test_the_node_the_line_the_kernel_and_the_stage_are_named(wrong_exp):
    with pytest.raises(VerificationError) as caught:
        torchsmith.compile(chain, verify=True)(X)
    text = str(caught.value)
    assert text.startswith("[TS-S003] backend 'smith' is wrong: output [0]: ")
    assert "It first differs at exp = torch.exp(mul)" in text
    assert f'File "{__file__}", line {LINE}, in chain\n    y = torch.exp(y * 2)' in text
    assert "computed by kernel k_" in text
    assert "stage at fault: lowering of aten.exp.default" in text
    assert "options={'disable': ['lowering:aten.exp.default']}" in text
    assert isinstance(caught.value, torchsmith_tracer.errors.BackendError)
    healed = torchsmith.compile(
        chain, verify=True, options={"disable": ["lowering:aten.exp.default"]}
    )
    torch.testing.assert_close(healed(X), chain(X))


def test_other_backends_are_verified(wrong_exp):
    def backend(gm, inputs):
        return lambda *args: tuple(x * 2 for x in gm(*args))

    with pytest.raises(VerificationError, match=r"backend 'backend' is wrong(.|\n)*sin = "):
        torchsmith.compile(chain, backend=backend, verify=True)(X)
    assert torch.equal(torchsmith.compile(chain, backend="eager", verify=True)(X), chain(X))
    with pytest.raises(Exception, match="unknown option 'nonesuch'"):
        torchsmith.compile(chain, verify=True, options={"nonesuch": 1})
    for mode in ("default", "reduce-overhead"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = torchsmith.compile(lambda x: x + 1, verify=True, mode=mode)
            assert torch.equal(run(X), X + 1)


def test_suppressed_errors_are_warnings(wrong_exp):
    run = torchsmith.compile(chain, verify=True, options={"suppress_backend_errors": True})
    with pytest.warns(torchsmith_tracer.errors.TracerWarning, match="first differs at exp"):
        assert torch.equal(run(X), chain(X))


def only_record(folder):
    (found,) = Path(folder).iterdir()
    return found, json.loads((found / "record.json").read_text())


def test_a_wrong_result_is_recorded(wrong_exp, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHSMITH_REPRO", str(tmp_path))
    with pytest.raises(VerificationError):
        torchsmith.compile(chain, verify=True)(X)
    folder, facts = only_record(tmp_path)
    assert facts["state"] == "failed" and facts["failure"]["kind"] == "accuracy"
    assert f"line {LINE - 1}" in facts["place"]
    assert facts["inputs"][0]["shape"] == [3, 4] and facts["inputs"][0]["stride"] == [4, 1]
    assert facts["environment"]["torch"].startswith(torch.__version__.split("+")[0])
    assert facts["settings"]["graph_cache"] in (True, False)
    assert "exp = torch.exp(mul)" in (folder / "repro.py").read_text()
    assert "torch.exp" in (folder / "graph.txt").read_text()


def fails(*args):
    raise KeyError("planted")


@pytest.mark.parametrize("strict", [True, False])
def test_a_failed_stage_is_recorded_and_the_program_goes_on(strict, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("TORCHSMITH_REPRO", str(tmp_path))
    monkeypatch.setattr(DeadCode, "run", fails)
    options = {"strict": strict, "graph_cache": False}
    run = torchsmith.compile(lambda x: x.sin() + 1, options=options)
    if strict:
        with pytest.raises(Exception, match="pass dead-code"):
            run(X)
    else:
        assert torch.equal(run(X), X.sin() + 1)
    _, facts = only_record(tmp_path)
    assert facts["failure"]["error"] == "StageError" and "dead-code" in facts["title"]


def test_an_error_of_a_compiled_graph_is_recorded_unless_it_is_eagers(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHSMITH_REPRO", str(tmp_path))

    def backend(gm, inputs):
        def run(*args):
            if args[0].sum() > 5:
                raise ZeroDivisionError("planted")
            return gm(*args)

        return run

    run = torchsmith.compile(lambda x: x.sin(), backend=backend)
    assert torch.equal(run(torch.ones(3)), torch.ones(3).sin())
    assert list(tmp_path.iterdir()) == []  # it ran: nothing to tell
    with pytest.warns(torchsmith_tracer.errors.TracerWarning, match="planted"):
        run(torch.full((3,), 9.0))
    _, facts = only_record(tmp_path)
    assert facts["failure"]["kind"] == "run" and facts["failure"]["error"] == "ZeroDivisionError"


def test_eagers_own_errors_are_not_recorded(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHSMITH_REPRO", str(tmp_path))
    run = torchsmith.compile(lambda x, i: x[i] * 2)
    run(X, torch.tensor([0]))
    with pytest.raises(IndexError):
        run(X, torch.tensor([99]))
    assert list(tmp_path.iterdir()) == []


def test_a_graph_is_recorded_while_it_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHSMITH_REPRO", str(tmp_path))
    seen = []

    def backend(gm, inputs):
        def run(*args):
            seen.append(only_record(tmp_path)[1]["state"])
            return gm(*args)

        return run

    torchsmith.compile(lambda x: x.sin(), backend=backend)(X)
    assert seen == ["running"] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["a file", "/proc/nowhere"])
def test_unwritable_folders_are_one_warning(where, monkeypatch, tmp_path):
    if where == "a file":
        (tmp_path / "file").write_text("")
        where = str(tmp_path / "file")
    monkeypatch.setenv("TORCHSMITH_REPRO", where)
    with pytest.warns(RecordWarning, match="TS-S004") as said:
        for k in (1, 2):
            run = torchsmith.compile(lambda x: x.sin() * k)
            assert torch.allclose(run(X), X.sin() * k)
    assert len(said) == 1


def test_without_being_asked_nothing_is_in_the_way(monkeypatch):
    monkeypatch.delenv("TORCHSMITH_REPRO", raising=False)
    run = torchsmith.compile(lambda x: x.sin())
    assert run._torchsmith_region.backend.fn is smith
