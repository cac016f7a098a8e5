"""Results of aten calls that do not start their storage: copies of a part keep its offset."""

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import Settings, compile_graph
from torchsmith_fx_backend._src.driver import compile_training

SCATTERS = {
    "diagonal": lambda x: x.diagonal_scatter(x.diagonal() + 1),
    "select": lambda x: x.select_scatter(x[0] + 1, 0, 1),
    "slice": lambda x: x.slice_scatter(x[1:] + 1, 0, 1),
    "as_strided": lambda x: x.as_strided_scatter(x[0] + 1, (4,), (1,)),
}
READERS = {
    "view in place": lambda y: y.repeat_interleave(1, 0),
    "copy in place": lambda y: y.clone() + 1,
    "other type": lambda y: y.to(torch.int64) * 2,
    "sum": lambda y: y.sum(0),
    "view": lambda y: y.t() * y,
}


@pytest.mark.parametrize("compiled_by", [compile_graph, compile_training])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("scatter", SCATTERS)
def test_copies_of_parts(scatter, reader, compiled_by):
    def fn(x):
        return (READERS[reader](SCATTERS[scatter](x)),)

    for dtype in (torch.uint8, torch.float32):
        x = torch.arange(24).to(dtype).view(6, 4)[1:-1]
        settings = Settings(graph_cache=False, verify=True)
        compiled = compiled_by(fx.symbolic_trace(fn), [x], settings)
        for _ in range(2):
            torch.testing.assert_close(compiled(x)[0], fn(x)[0], rtol=0, atol=0)


SHARERS = {
    "as_strided": lambda x: x.as_strided((3, 4), (1, 3), 2),
    "as_strided of a part": lambda x: x[1:].as_strided((3, 4), (1, 3), 7),
    "unfold": lambda x: x[1:].unfold(0, 2, 1),
    "detach": lambda x: x[2:].detach(),
    "view as other type": lambda x: x[2:].view(torch.int32),
}


@pytest.mark.parametrize("share", SHARERS)
def test_results_that_share_memory_go_on_sharing_it(share):
    def read(x):
        shared = SHARERS[share](x)
        return shared, shared.abs()

    def write(x):
        shared = SHARERS[share](x)
        torch.mul(shared, shared, out=shared)
        return shared, x + 1

    for fn in (read, write):
        if fn is write and share == "unfold":
            continue  # eager refuses to write where elements share memory
        x = torch.arange(24.0).view(6, 4)
        compiled = compile_graph(fx.symbolic_trace(fn), [x], Settings(graph_cache=False))
        for _ in range(2):
            there = x.clone()
            wanted, found = fn(there), compiled(x)
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(x, there, rtol=0, atol=0, equal_nan=True)
            starts = found[0].data_ptr() - x.data_ptr()
            assert starts == wanted[0].data_ptr() - there.data_ptr()
            assert found[0].stride() == wanted[0].stride()


STACKS = {
    "item": lambda y: (y, y[-1]),
    "items": lambda y: (y, y.unbind(0)[0], y.unbind(0)[1]),
    "items alone": lambda y: (y[0], y[0]),
    "item through a view": lambda y: (y.flatten(), y[1]),
    "item of an item": lambda y: (y[:1], y[0]),
}


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("compiled_by", [compile_graph, compile_training])
@pytest.mark.parametrize("taken", STACKS)
def test_a_stack_shares_its_memory_with_its_items(taken, compiled_by, shape):
    program = fx.symbolic_trace(lambda x: STACKS[taken](torch.stack([x * 2, x])))
    x = torch.randn(shape)
    found = compiled_by(program, [x], Settings(graph_cache=False, verify=True))(x)
    wanted = program(x)
    torch.testing.assert_close(found, wanted)
    assert _storages(found) == _storages(wanted)


def _storages(results):
    places = [y.untyped_storage().data_ptr() for y in results]
    return [places.index(place) for place in places]
