"""Recordings, on a recorder that does on a CPU what a CUDA graph does on a GPU."""

import contextlib

import pytest
import torch
from torch import fx
from torchsmith_fx_backend._src import by_rows, keyed
from torchsmith_fx_backend._src.runtime import recordings
from torchsmith_fx_backend._src.runtime.recordings import Recordings, obstacle
from torchsmith_guards import FakeMode


class FakeRecorder:
    """Keeps the function and, as a CUDA graph does, writes its results where the first ones lay."""

    def __init__(self, touched=()):
        self.recorded = self.replayed = 0
        self.touched = list(touched)
        self.capturing = False

    def ready(self):
        return not self.capturing

    @contextlib.contextmanager
    def turn(self):
        yield

    def random_state(self):
        return torch.get_rng_state().tolist()

    def record(self, run):
        before = [tensor.clone() for tensor in self.touched]
        results = run()
        for tensor, old in zip(self.touched, before, strict=True):
            tensor.data.copy_(old)  # recording does not do the work
        self.recorded += 1

        def replay():
            self.replayed += 1
            versions = [tensor._version for tensor in self.touched]
            for place, fresh in zip(results, run(), strict=True):
                if isinstance(place, torch.Tensor) and place.data_ptr() != fresh.data_ptr():
                    with torch.inference_mode():
                        place.copy_(fresh)
            for tensor, version in zip(self.touched, versions, strict=True):
                torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))

        return replay, results


def graph(function):
    function.source, function.kernels = "", ()
    return function


def recorded(function, *, touched=(), **kwargs):
    said = []
    recorder = FakeRecorder(touched)
    call = Recordings(graph(function), recorder, say=said.append, **kwargs)
    return call, recorder, said


def test_results_follow_the_inputs_and_outlive_later_calls():
    weight = torch.nn.Parameter(torch.randn(4, 4), requires_grad=False)
    call, recorder, said = recorded(lambda x, w: (x @ w, x + 1))
    kept = []
    for step in range(6):
        x = torch.full((2, 4), float(step))
        kept.append((x, call(x, weight)))
        if step == 3:
            weight.data.mul_(2)  # a write that leaves no trace
            kept.clear()
    for x, (product, plus) in kept:
        torch.testing.assert_close(product, x @ weight)
        torch.testing.assert_close(plus, x + 1)
    assert (recorder.recorded, recorder.replayed, said) == (1, 5, [])


def test_a_written_input_is_written_where_it_is_and_counts_versions():
    def step(cache, x):
        cache.add_(x)
        return (cache * 2,)

    cache, other = torch.zeros(3), torch.zeros(3)
    call, recorder, _ = recorded(step, touched=[cache, other], written=[0])
    for number in range(1, 6):
        (doubled,) = call(cache, torch.ones(3))
        assert doubled.tolist() == [2.0 * number] * 3
        assert cache.tolist() == [1.0 * number] * 3
    assert cache._version == 5
    assert recorder.recorded == 1
    for _ in range(3):  # a second cache has a recording of its own
        call(other, torch.ones(3))
    assert (other.tolist(), cache.tolist(), call.count) == ([3.0] * 3, [5.0] * 3, 2)


LAYOUTS = {
    "transposed": lambda: torch.randn(3, 5).t(),
    "sliced": lambda: torch.randn(6, 8)[1:4, 2:7],
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "empty": lambda: torch.randn(0, 4),
    "scalar": lambda: torch.randn(()),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_of_inputs_and_results(make):
    def run(x):
        whole = torch.empty(4, 6).fill_(float(x.sum()))
        return whole, whole[1:3, ::2], (x + 1).t() if x.dim() == 2 else x + 1, 7, None, x

    call, recorder, _ = recorded(run)
    for _ in range(4):
        x = make()
        got, expected = call(x), run(x)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b)
            if isinstance(a, torch.Tensor):
                assert (a.stride(), a.storage_offset()) == (b.stride(), b.storage_offset())
                assert a.untyped_storage().nbytes() == b.untyped_storage().nbytes()
        assert got[0].data_ptr() == got[1].untyped_storage().data_ptr()  # still views of one
        assert got[5] is x
    assert recorder.recorded == 1


def test_views_of_inputs_and_of_attributes_stay_views():
    table = torch.arange(6.0)
    call, _, _ = recorded(lambda x: (x[1:], table, table[2:4]), attributes=[table])
    for _ in range(4):
        x = torch.randn(5)
        tail, whole, part = call(x)
        x[1], table[2] = 42.0, 43.0
        assert (tail[0].item(), part[0].item()) == (42.0, 43.0)
        assert whole is table


def test_large_inputs_that_stay_are_not_copied_and_those_that_move_are():
    def run(x):
        seen.append(x.data_ptr())
        return (x.sum(),)

    seen = []
    big = torch.ones(recordings.SMALL_BYTES)
    call, recorder, said = recorded(run)
    for _ in range(3):
        call(big)
    assert set(seen) == {big.data_ptr()}
    others = [torch.full_like(big, float(n)) for n in range(6)]
    for other in others:
        assert call(other)[0] == other.sum()
    assert (recorder.recorded, said) == (2, [])


def test_parameters_that_are_replaced_are_recorded_anew_until_it_is_too_often():
    call, recorder, said = recorded(lambda w: (w + 1,))
    kept = []
    for n in range(2 * recordings.MAX_MOVES + 4):
        w = torch.nn.Parameter(torch.full((3,), float(n)), requires_grad=False)
        kept.append(w)
        for _ in range(3):
            assert call(w)[0].tolist() == [n + 1.0] * 3
    assert recorder.recorded <= recordings.MAX_MOVES + 1
    assert said == ["its parameters are at other addresses at each call"]
    assert call.refused is not None


def test_one_recording_for_each_size_up_to_a_bound():
    call, recorder, said = recorded(lambda n, x: (x * n,), static=False)
    for size in range(1, recordings.MAX_RECORDINGS + 4):
        for value in (1.0, 2.0, 3.0):
            x = torch.full((size,), value)
            assert call(2, x)[0].tolist() == [2 * value] * size
    assert call.count == recorder.recorded == recordings.MAX_RECORDINGS
    assert len(said) == 1 and "recordings already" in said[0]
    assert call(2, torch.ones(1))[0].tolist() == [2.0]
    assert call(3, torch.ones(1))[0].tolist() == [3.0]  # a number is a part of the recording


def test_what_cannot_be_recorded_runs_and_says_why():
    def failing(x):
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return (x + 1,)

    class Fails(FakeRecorder):
        def record(self, run):
            fails.append(1)
            try:
                return super().record(run)
            finally:
                fails.clear()

    fails, said = [], []
    call = Recordings(graph(failing), Fails(), say=said.append)
    for _ in range(4):
        assert call(torch.ones(2))[0].tolist() == [2.0, 2.0]
    assert len(said) == 1 and said[0].endswith("not permitted when stream is capturing")

    cases = {
        "random numbers": (lambda x: (torch.rand_like(x) * 0 + x,), torch.ones(2)),
        "seen as another type": (lambda x: (x.view(torch.int32),), torch.ones(2)),
        "conjugated": (lambda x: (x + 0,), torch.ones(2, dtype=torch.complex64).conj()),
    }
    for reason, (function, x) in cases.items():
        call, recorder, said = recorded(function)
        for _ in range(3):
            torch.testing.assert_close(call(x)[0], function(x)[0])
        assert recorder.replayed == 0
        assert len(said) == 1 and reason in said[0]


def test_while_the_caller_records_nothing_is_replayed():
    call, recorder, _ = recorded(lambda x: (x + 1,))
    for _ in range(3):
        call(torch.ones(1))
    recorder.capturing = True
    before = recorder.replayed
    assert call(torch.ones(1))[0].item() == 2
    assert recorder.replayed == before


@pytest.mark.parametrize("first", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("then", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes_may_change_between_calls(first, then):
    call, recorder, said = recorded(lambda x: (x + 1,))
    for mode in (first, first, then, then):
        with mode():
            result = call(torch.ones(2))[0]
            assert result.tolist() == [2.0, 2.0]
            assert not result.requires_grad
            assert result.is_inference() == (mode is torch.inference_mode)
    assert (recorder.recorded, said) == (1, [])


def _graph_of(*nodes):
    made = fx.Graph()
    for name, target, value, *generator in nodes:
        if target is None:
            made.placeholder(name).meta["val"] = value
            continue
        x = next(iter(made.nodes))
        node = made.call_function(target, (x,), {"generator": x} if generator else {})
        node.meta["val"] = value
    made.output(())
    return made


def test_obstacles_are_seen_in_the_graph():
    with FakeMode().mode:
        gpu, second = torch.empty(2, device="cuda:0"), torch.empty(2, device="cuda:1")
    cpu = torch.empty(2)
    x, aten = ("x", None, gpu), torch.ops.aten
    # What a generator of the device draws, a recording draws anew.
    for target in (aten.sin.default, aten.bernoulli.default, *keyed.PURE, by_rows.product):
        assert obstacle(_graph_of(x, ("y", target, gpu))) == ""
    for dtype, fits in ((torch.int64, True), (torch.int32, True), (torch.bool, False)):
        made = _graph_of(x, ("i", None, gpu.to(dtype)), ("y", aten.index.Tensor, gpu))
        source, places, node = list(made.nodes)[:3]
        node.args = (source, [None, places])
        assert (obstacle(made) == "") is fits
    table = {
        "an input is on device 'cpu'": [x, ("y", None, cpu)],
        "the result of aten.sin.default is on device 'cpu'": [x, ("y", aten.sin.default, cpu)],
        "several devices": [x, ("y", aten.sin.default, second)],
        "a generator of its own": [x, ("y", aten.bernoulli.default, gpu, "generator")],
        "depends on data": [x, ("y", aten.nonzero.default, gpu)],
        "no input is on a GPU": [],
    }
    for reason, nodes in table.items():
        assert reason in obstacle(_graph_of(*nodes))
