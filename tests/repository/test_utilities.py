"""Where each utility that users of a tracer know from the reference system is tested here.

What is decided differently, and why: ``docs/reference/metrics.md``. A row names a file of tests,
the beginning of a test's name, and, after a word in brackets, a row of that test's own table.
"""

from __future__ import annotations

import pytest
from sources import ROOT, is_there

TABLE = """
counters of two levels: guards/tests/records/test_records.py::test_counters_have_two_levels
compile times by function: guards/tests/records/test_records.py::test_times_as_text
times by frame and phase: guards/tests/records/test_records.py::test_phases_go_to_the_record
frame counter: tracer/tests/records/test_metrics.py::test_one_call_is_one_frame
op counter: tracer/tests/records/test_metrics.py::test_one_call_is_one_frame
timed stages are ranges: guards/tests/records/test_records.py::test_a_running_profiler
calls are ranges: tracer/tests/records/test_metrics.py::test_calls_are_ranges
time summary in one line: guards/tests/records/test_records.py::test_times_as_text
metric report: guards/tests/records/test_records.py::test_times_as_text
dump at exit: guards/tests/records/test_records.py::test_the_exit_report
tables without a package: guards/tests/records/test_records.py::test_tables_put_numbers
record of a frame: tracer/tests/records/test_metrics.py::test_failures_are_records
record of a backward graph: torchsmith/tests/test_debug_folder.py::test_a_training_step
ring buffer: guards/tests/records/test_records.py::test_the_latest_records
compile profiler: guards/tests/records/test_records.py::test_the_report_tells_breaks
advice on the limit: tracer/tests/records/test_metrics.py::test_the_report_advises
none where there is nothing: tracer/tests/records/test_metrics.py::test_the_report_says_none
label of a function: tracer/tests/records/test_metrics.py::test_a_recompile_is_told
limits of recompiles: tracer/tests/records/test_metrics.py::test_versions_and_the_limit
why of guards: tracer/tests/records/test_metrics.py::test_a_recompile_is_told
why of breaks: tracer/tests/records/test_metrics.py::test_breaks_are_told
counted calls: tracer/tests/records/test_metrics.py::test_one_call_is_one_frame
debug folder: torchsmith/tests/test_debug_folder.py::test_every_stage_has_a_file
debug switch: torchsmith/tests/test_debug_folder.py::test_nothing_is_written_without
log files: torchsmith/tests/test_debug_folder.py::test_every_stage_has_a_file
crash records: torchsmith/tests/test_debug_folder.py::test_crash_records_underline
repeated warnings: tracer/tests/regions/test_dispatcher.py::test_recompile_limit_warns_once
warnings once: tracer/tests/test_api.py::test_a_mode_for_a_backend_without_modes_warns_once
text of messages: tracer/tests/test_breaks.py::test_fullgraph_names
graphs as text: tracer/tests/test_api.py::test_logs
generated code as text: tracer/tests/test_api.py::test_logs
functions that give their argument: tracer/tests/acceptance/test_utilities.py::test_ [functions]
hashability: tracer/tests/acceptance/test_utilities.py::test_ [hashability probe]
exact types: tracer/tests/acceptance/test_utilities.py::test_ [exact type test]
maps by identity that keep nothing: tracer/tests/regions/test_lifetimes.py::test_no_argument
globals are cleaned up: tracer/tests/acceptance/test_values.py::test_nothing_is_left
code dies with its owner: tracer/tests/regions/test_dispatcher.py::test_code_dies
first of several attributes: tracer/tests/acceptance/test_utilities.py::test_ [first of several]
cells: tracer/tests/acceptance/test_utilities.py::test_ [closure cell]
rotations: tracer/tests/acceptance/test_utilities.py::test_ [rotation of the stack]
qualified names: tracer/tests/acceptance/test_utilities.py::test_ [qualified name]
sources that are missing: tracer/tests/records/test_metrics.py::test_code_without_a_file
bare objects: tracer/tests/acceptance/test_utilities.py::test_ [bare object creation]
dead handles: tracer/tests/acceptance/test_utilities.py::test_ [dead removable handle]
checkpoints: tracer/tests/acceptance/test_utilities.py::test_ [activation checkpointing]
checkpoints save as little: tracer/tests/higher_order/test_control.py::test_checkpointing_is_in
typing constructs: tracer/tests/acceptance/test_utilities.py::test_ [typing constructs]
scalars and arrays: tracer/tests/acceptance/test_utilities.py::test_ [NumPy scalars and arrays]
namespaces of NumPy: tracer/tests/values/test_numpy_functions.py::test_
functions of all kinds: tracer/tests/acceptance/test_utilities.py::test_ [functions]
cached functions: tracer/tests/acceptance/test_utilities.py::test_ [cached functions]
marks to look into or not: tracer/tests/regions/test_marks.py::test_what_is_disabled
tensors: tracer/tests/acceptance/test_utilities.py::test_ [exact tensor types]
lazy modules: tracer/tests/regions/test_changed_modules.py::test_lazy_modules
named tuples: tracer/tests/acceptance/test_utilities.py::test_ [named tuples]
scripted models: tracer/tests/acceptance/test_utilities.py::test_ [script functions]
states of random numbers: tracer/tests/acceptance/test_utilities.py::test_ [random states]
slots of tensors: tracer/tests/acceptance/test_utilities.py::test_ [slots of tensors]
carriers of torch functions: tracer/tests/torch/test_torch_function.py::test_
attributes by hooks: tracer/tests/acceptance/test_utilities.py::test_ [custom attribute hooks]
types of constants: tracer/tests/acceptance/test_utilities.py::test_ [constants]
legacy tensor types: tracer/tests/acceptance/test_utilities.py::test_ [legacy tensor types]
constants of all kinds: tracer/tests/test_capture.py::test_18
iterators of containers: tracer/tests/acceptance/test_utilities.py::test_ [container iterators]
iterators as arguments: tracer/tests/acceptance/test_values.py::test_an_iterator_argument
devices that cannot: torchsmith/tests/test_modes.py::test_each_mode_warns_once
keys by identity: tracer/tests/acceptance/test_utilities.py::test_ [keys by identity]
constants as text: guards/tests/guards/test_guard_set.py::test_objects_that_print_alike
enums as keys: tracer/tests/acceptance/test_utilities.py::test_ [enum keys]
arguments of operators: docs/reference/breaks.md::TS-T003
symbols become numbers: tracer/tests/build/test_marks.py::test_static_marks_within
which arguments are constant: tracer/tests/test_dynamic.py::test_14
membership: tracer/tests/acceptance/test_utilities.py::test_ [membership]
membership by identity: tracer/tests/acceptance/test_utilities.py::test_ [membership by identity]
nodes have examples: tracer/tests/torch/test_torch_fn.py::test_nodes_carry_metadata
metadata that changes: tracer/tests/acceptance/test_utilities.py::test_ [metadata that changes]
tensors have fakes: guards/tests/fake/test_mode.py::test_the_same_tensor
the node at fault: torchsmith/tests/repro/test_watch.py::test_the_node_the_line
lists whose items are freed: fx-backend/tests/aot/test_training.py::test_a_backward_pass_frees
subclass casts: tracer/tests/acceptance/test_utilities.py::test_ [subclass cast]
hooks on saved tensors: tracer/tests/regions/test_ambient.py::test_saved_tensor_hooks
transforms around the call: guards/tests/guards/test_global_state.py::test_functorch_level
copies with gradients: torchsmith/tests/repro/test_clones.py::test_place_in_autograd
copies with layouts: torchsmith/tests/repro/test_clones.py::test_layout
copies of sparse tensors: torchsmith/tests/repro/test_clones.py::test_sparse
copies of batches: torchsmith/tests/repro/test_clones.py::test_batches
random state is put back: torchsmith/tests/repro/test_clones.py::test_random_state
models are put back: torchsmith/tests/repro/test_clones.py::test_checkpoint
inputs like those recorded: torchsmith/tests/test_debug_folder.py::test_every_stage_has_a_file
what is not on the GPU: torchsmith/tests/test_modes.py::test_each_mode_warns_once
root mean square: torchsmith/tests/repro/test_same.py::test_rmse
differences are told: torchsmith/tests/repro/test_same.py::test_each_difference
containers are compared: torchsmith/tests/repro/test_same.py::test_same
structures differ: torchsmith/tests/repro/test_same.py::test_what_has_another_structure
float64 decides: torchsmith/tests/repro/test_same.py::test_float64_decides
fake results: guards/tests/fake/test_mode.py::test_static_mode_runs
modes nest: guards/tests/fake/test_mode.py::test_modes_nest
errors by kind, sizes from data: docs/reference/breaks.md::TS-T030
errors by kind, no fake: docs/reference/breaks.md::TS-T031
errors by kind, arguments: docs/reference/breaks.md::TS-T032
errors by kind, facts about data: docs/reference/breaks.md::TS-T041
errors reach the user's handler: tracer/tests/test_exceptions.py::test_operator_errors
modules are faked: guards/tests/fake/test_lean.py::test_a_model_is_faked
nodes run alone: torchsmith/tests/repro/test_minify.py::test_graphs_become_small
real to fake: guards/tests/fake/test_mode.py::test_static_binding
no leaked fakes: tracer/tests/regions/test_ambient.py::test_autocast_keeps_no_fake_casts
attributes of modules: tracer/tests/torch/test_module_values.py::test_custom_getattr_and_call
hooks of modules: tracer/tests/acceptance/test_utilities.py::test_ [hooks of modules]
hooks added later: tracer/tests/torch/test_module_values.py::test_hook_added_later
hooks of all modules: tracer/tests/torch/test_module_values.py::test_global_hook
modules are not held: tracer/tests/regions/test_lifetimes.py::test_modules_that_are_arguments
arrays in and out: tracer/tests/values/test_numpy_arrays.py::test_arrays_in_and_out
calls of NumPy: tracer/tests/acceptance/test_utilities.py::test_ [NumPy functions, attributes]
static marks: tracer/tests/torch/test_shapes.py::test_marked_static_stays
why a size is static: tracer/tests/build/test_marks.py::test_sizes_that_are_fixed
underlined source: tracer/tests/breaks/test_reference.py::test_the_span
nested arguments: tracer/tests/test_capture.py::test_22
backward graphs: fx-backend/tests/aot/test_training.py::test_results_and_gradients
"""
ROWS = [line.rpartition(": ")[::2] for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize(("utility", "place"), ROWS, ids=[row[0] for row in ROWS])
def test_each_utility_has_a_test(utility: str, place: str) -> None:
    file, _, name = place.partition("::")
    if file.endswith(".md"):  # programs that are run, see tests/readme
        assert f"\n## {name} " in (ROOT / file).read_text()
        return
    assert is_there(place, ROOT / "packages"), utility


def test_each_utility_is_there_once() -> None:
    names = [row[0] for row in ROWS]
    assert len(names) == len(set(names)) > 100
