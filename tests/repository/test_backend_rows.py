"""Where each thing that users of the reference backend can observe is tested here.

A row has its number, what is observed, and the tests that show it: a file, and the beginning of a
test's name, and of a text in that file in brackets. A line that begins with ``decided`` names the
record in ``docs`` that says what is done instead, and how the passage begins. ``later`` is what
there is nothing of yet.
"""

from __future__ import annotations

import re

import pytest
from sources import ROOT, is_there

SHORT = {
    "CAPTURE": "packages/fx-backend/tests/capture/test_make_fx.py",
    "DRIVER": "packages/fx-backend/tests/driver",
    "OBSERVED": "packages/torchsmith/tests/test_observed.py",
    "GPU": "packages/torchsmith/tests/test_on_a_gpu.py",
}
LATER = {52, 53}  # compiling ahead of time is planned

TABLE = """
1 a trace records primitive operators
    CAPTURE::test_records_primitive_operators
2 what was traced runs, also at another size
    CAPTURE::test_records_primitive_operators
3 a wrong mode, and keywords
    CAPTURE::test_wrong_mode_and_keywords
4 containers in, containers out
    CAPTURE::test_containers_in_and_out
5 variable positional arguments
    CAPTURE::test_variable_positional_arguments
6 a tensor of a closure becomes an attribute
    CAPTURE::test_closure_tensor_becomes_an_attribute
7 weights of a module of a closure stay what they are
    CAPTURE::test_closure_module_keeps_its_parameters
8 a real tensor in a fake trace
    CAPTURE::test_real_tensor_in_fake_trace
9 reading a number of a real tensor is refused
    CAPTURE::test_reading_a_value_is_refused_on_real_tensors
10 reading a number is traced symbolically
    CAPTURE::test_reading_a_value_symbolically
11 the refusal can be switched off
    CAPTURE::test_refusal_can_be_switched_off
12 a branch on data
    CAPTURE::test_branch_on_data_and_branch_on_size
13 a branch on a size leaves a guard
    CAPTURE::test_branch_on_data_and_branch_on_size
14 a literal tensor is not corrupted
    CAPTURE::test_literal_is_not_corrupted
15 constants fold through arithmetic
    CAPTURE::test_small_literals_fold
16 what does not fold
    CAPTURE::test_larger_literals_and_factories_do_not_fold
17 arithmetic of sizes is recorded
    CAPTURE::test_size_arithmetic_is_recorded_once
18 arithmetic of sizes that is free or unused
    CAPTURE::test_unused_and_free_size_arithmetic_leaves_nothing
19 a symbolic graph is right for other sizes
    CAPTURE::test_symbolic_graph_is_size_generic
20 size 1 is specialised
    CAPTURE::test_size_one_is_specialised
21 a symbolic number as a result
    CAPTURE::test_symbolic_number_as_output_and_input
22 sizes from data are bound
    CAPTURE::test_size_from_data_is_bound
23 every node has its value
    CAPTURE::test_every_node_has_its_value
24 a table of decompositions
    CAPTURE::test_decomposition_table
25 composites are split, or whole
    CAPTURE::test_composites_are_split
    packages/tracer/tests/acceptance/test_graphs.py::test_composites_and_modes [matmul]
    decided decisions/0016-differently-from-stock.md: *Composites, modes and paths
26 blocks without gradients
    packages/tracer/tests/acceptance/test_graphs.py::test_composites_and_modes [_set_grad_enabled]
    decided decisions/0016-differently-from-stock.md: *Composites, modes and paths
27 autocast is lowered, or kept
    CAPTURE::test_autocast_shows_as_casts
    packages/tracer/tests/acceptance/test_graphs.py::test_composites_and_modes [_enter_autocast]
    decided decisions/0016-differently-from-stock.md: *Composites, modes and paths
28 a backward pass is recorded
    CAPTURE::test_gradients_are_recorded
    CAPTURE::test_gradient_of_input
29 a trace within a trace does not leak
    CAPTURE::test_nested_trace_does_not_leak
30 what is computed while tracing is off is a constant
    CAPTURE::test_disabled_tracing_bakes_a_constant
31 random operators stay calls
    CAPTURE::test_random_operators_stay_calls
32 nodes have the path of their module
    packages/tracer/tests/torch/test_module_values.py::test_module_stack_is_recorded
    packages/tracer/tests/torch/test_module_values.py::test_a_shared_module_is_named
    decided decisions/0016-differently-from-stock.md: *Composites, modes and paths
33 a shared module is named by its use
    packages/tracer/tests/torch/test_module_values.py::test_a_shared_module_is_named
    decided decisions/0016-differently-from-stock.md: *Composites, modes and paths
34 results keep their structure
    DRIVER/test_nested.py::test_results_have_the_structure_of_the_graph
    DRIVER/test_driver.py::test_result_structures
35 graphs that return a bare tensor
    DRIVER/test_nested.py::test_results_have_the_structure_of_the_graph [a tensor]
    decided decisions/0016-differently-from-stock.md: *There is one way to call
36 a graph without operators
    DRIVER/test_nested.py::test_a_graph_without_operators_is_not_compiled
37 lists whose items are freed
    packages/fx-backend/tests/aot/test_training.py::test_a_backward_pass_frees_what_it_has_read
    decided decisions/0016-differently-from-stock.md: *There is one way to call
38 a list as an input
    DRIVER/test_nested.py::test_arguments_may_be_containers
    DRIVER/test_nested.py::test_another_structure_runs_as_captured
39 exported graphs of dicts
    DRIVER/test_nested.py::test_graphs_whose_code_takes_containers_apart
40 names and scopes of options
    DRIVER/test_driver.py::test_settings_patch_and_environment
    DRIVER/test_driver.py::test_unknown_option
    DRIVER/test_modes.py::test_unknown_modes_and_options_are_errors
    OBSERVED::test_what_is_no_option_is_an_error
41 a training step
    OBSERVED::test_a_step_compiles_each_half_once
42 writes to arguments are seen
    OBSERVED::test_a_written_argument_is_written_once [the same]
43 aliases are kept
    OBSERVED::test_results_are_the_inputs_and_views_that_eager_gives
    DRIVER/test_driver.py::test_writes_and_aliases_reach_the_caller
44 channels-last strides are kept
    OBSERVED::test_channels_last_stays_channels_last
    packages/fx-backend/tests/aot/test_functionalize.py::test_matches_eager
45 one compile for many sizes
    OBSERVED::test_one_compile_for_many_sizes
    packages/tracer/tests/test_dynamic.py::test_07
46 the cache after a reset
    OBSERVED::test_a_compile_after_a_reset_comes_from_the_cache
47 no cache
    OBSERVED::test_without_the_cache_nothing_is_found_or_missed
48 a compile leaves random numbers alone
    OBSERVED::test_a_compile_leaves_random_numbers_alone
    DRIVER/test_driver.py::test_grad_mode_is_restored_and_rng_untouched
49 freezing
    tests/integration/test_freezing.py::test_a_batch_norm_is_folded_into_the_weights
    tests/integration/test_freezing.py::test_a_change_that_leaves_a_trace_is_seen
    tests/integration/test_freezing.py::test_gradients_are_refused
    decided decisions/0019-freezing.md: Each call compares the tensors' identities
50 bodies of control flow are compiled
    packages/torchsmith/tests/test_native_nodes.py::test_branches_and_loops_on_data
51 derivatives of derivatives
    packages/fx-backend/tests/aot/test_twice.py::test_derivatives_of_derivatives
    packages/fx-backend/tests/aot/test_twice.py::test_what_cannot_run_again_is_an_error_that_says
    decided decisions/0015-training.md: under `create_graph=True` the captured graph runs again
52 a library compiled ahead of time
    later
53 a wrapper in C++ whose example is on another device
    later
54 a failure of a backend is wrapped
    packages/tracer/tests/test_exceptions.py::test_60_backend_errors_name_the_backend
55 reduce-overhead on a CPU
    OBSERVED::test_reduce_overhead_on_a_cpu_runs_and_is_counted
    DRIVER/test_modes.py::test_reduce_overhead_on_a_cpu_says_that_nothing_is_recorded
56 inputs that are not aligned
    DRIVER/test_input_contract.py::test_inputs_that_begin_anywhere
    DRIVER/test_input_contract.py::test_inputs_that_begin_inside_an_element
    decided decisions/0016-differently-from-stock.md: *Inputs are not copied to aligned
57 inputs that are not aligned, on a GPU
    GPU::test_inputs_that_begin_anywhere
    packages/fx-backend/tests/codegen_triton/test_gpu.py::test_unaligned_views_and_streams
    packages/fx-backend/tests/codegen_triton/test_triton_launcher.py::test_unaligned_pointers
58 replayed calls are right
    GPU::test_replayed_calls_are_right
    packages/fx-backend/tests/runtime/test_recordings.py::test_results_follow_the_inputs
59 calls that write, and what cannot be recorded
    GPU::test_a_call_that_writes_its_argument_is_replayed_too
    GPU::test_what_cannot_be_recorded_is_counted_and_says_why
    packages/fx-backend/tests/runtime/test_recordings.py::test_a_written_input_is_written_where
    packages/fx-backend/tests/runtime/test_recordings.py::test_what_cannot_be_recorded_runs
    decided decisions/0016-differently-from-stock.md: *Written arguments do not keep
60 hardware that is too old
    packages/fx-backend/tests/codegen_triton/test_gpu.py::test_unsupported_devices_warn_once
61 same: tolerance and dtype
    packages/torchsmith/tests/repro/test_same.py::test_same [dtype torch.float64]
    packages/torchsmith/tests/repro/test_same.py::test_each_difference_is_logged_once
62 same: NaN, truth values, integers, dicts
    packages/torchsmith/tests/repro/test_same.py::test_same [equal_nan]
    packages/torchsmith/tests/repro/test_same.py::test_what_has_another_structure_or_none
63 same: a referee in float64
    packages/torchsmith/tests/repro/test_same.py::test_float64_decides
64 copies have the layout of what they copy
    packages/torchsmith/tests/repro/test_clones.py::test_layout [transposed]
    packages/torchsmith/tests/repro/test_clones.py::test_place_in_autograd
    decided decisions/0016-differently-from-stock.md: *A copy of an expanded input*
65 errors of shapes
    packages/tracer/tests/acceptance/test_graphs.py::test_shape_errors_are_eagers
    decided decisions/0016-differently-from-stock.md: *What eager refuses is eager's own
66 times of stages
    OBSERVED::test_times_of_a_compile
    packages/guards/tests/records/test_records.py::test_times_as_text_csv_and_one_line
67 the latest records are kept
    OBSERVED::test_the_latest_compiles_are_kept
    packages/guards/tests/records/test_records.py::test_the_latest_records_are_kept
    decided decisions/0016-differently-from-stock.md: *One limit for all records*
68 a report of breaks and recompiles
    OBSERVED::test_a_report_names_breaks_and_recompiles
    packages/tracer/tests/records/test_metrics.py::test_the_report_says_none
69 source is underlined
    packages/tracer/tests/breaks/test_reference.py::test_the_span_is_underlined [wider than a byte]
    decided reference/metrics.md: * The span that a break underlines is marked by carets
70 the tracer alone
    tests/isolation/use_installed.py::use_tracer [eager]
"""


def _rows() -> dict[int, tuple[str, list[str]]]:
    rows: dict[int, tuple[str, list[str]]] = {}
    for line in TABLE.strip().splitlines():
        if line.startswith(" "):
            [*rows.values()][-1][1].append(line.strip())
        else:
            number, _, what = line.partition(" ")
            rows[int(number)] = (what, [])
    return rows


ROWS = _rows()


@pytest.mark.parametrize("number", ROWS)
def test_each_row_has_a_test(number: int) -> None:
    what, places = ROWS[number]
    tests = [place for place in places if not place.startswith(("decided ", "later"))]
    assert bool(tests) is (number not in LATER), what
    for place in tests:
        head = re.split("::|/", place)[0]
        assert is_there(place.replace(head, SHORT.get(head, head), 1), ROOT), place
    for place in set(places) - set(tests) - {"later"}:
        file, _, passage = place.removeprefix("decided ").partition(": ")
        assert passage in " ".join((ROOT / "docs" / file).read_text().split()), place


def test_no_row_is_left_out() -> None:
    assert [*ROWS] == [*range(1, 71)]
