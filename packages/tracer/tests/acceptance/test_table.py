"""What a user can observe, and where it is tested: each behaviour with its result and its number of
graphs. What is decided differently from the stock compiler is in docs/decisions."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

# Behaviour: file of tests, and the beginning of the names of those that show it.
TABLE = """
straight code is one graph: test_capture.py::test_01_one_graph
full-graph mode refuses breaks: acceptance/test_breaks.py::test_what_is_around_a_break
dtype, requires_grad and layout are guarded: test_capture.py::test_04
a size that changes becomes symbolic: test_dynamic.py::test_05
a change of rank makes all sizes symbolic: test_dynamic.py::test_06
dynamic is True or False: test_dynamic.py::test_07
sizes 0 and 1 have their own code: test_dynamic.py::test_08
equal sizes share a symbol: test_dynamic.py::test_09
sizes marked as dynamic compile once: build/test_marks.py::test_compiles
a violated mark is an error that names the line: build/test_marks.py::test_a_violation_names
static and unbacked marks: build/test_marks.py::test_compiles
ranges of marks: build/test_marks.py::test_ranges
marks within traced code: build/test_marks.py::test_marks_are_made_outside
ints that change become symbolic: test_dynamic.py::test_14
ints share no symbol with sizes: test_dynamic.py::test_15
floats that change become symbolic: test_dynamic.py::test_16
not-a-number is compiled once: test_capture.py::test_17
bools, text, None, complex and dtypes are constants: test_capture.py::test_18
global ints: test_capture.py::test_19
closure ints: test_capture.py::test_20
defaults of inlined functions are constants: test_capture.py::test_21
length and class of a sequence are guarded: test_capture.py::test_22
only used elements become inputs: test_capture.py::test_23
containers change in place: test_effects.py::test_24
aliased containers: test_capture.py::test_25
attribute stores: test_effects.py::test_26
the last store wins: test_effects.py::test_27
global and nonlocal counters: test_effects.py::test_28
classes with their own __setattr__: test_effects.py::test_29
two inputs that are one tensor: test_capture.py::test_30_alias
a local that is a global: test_capture.py::test_30_local_alias
tied weights are one input: test_modules.py::test_31
unused inputs are pruned: test_capture.py::test_32
sizes are read from their tensors: acceptance/test_values.py::test_no_graph_input_is_made
a size can be all that is used: test_dynamic.py::test_33
frames without operators are not compiled: test_capture.py::test_34
results keep their identity: test_capture.py::test_35
an empty no_grad leaves no node: test_capture.py::test_36
ambient state is guarded: test_capture.py::test_37
ambient state at a break: acceptance/test_breaks.py::test_what_is_around_a_break
a break within no_grad, a context or try: acceptance/test_breaks.py::test_what_is_around_a_break
live variables at a break: test_breaks.py::test_live_variables_only
Python's random numbers: test_effects.py::test_41
torch's random numbers: test_capture.py::test_42
arrays of NumPy in and out are one graph: values/test_numpy_arrays.py::test_arrays_in_and_out
numbers of NumPy share one compile: values/test_numpy_arrays.py::test_numbers_of_numpy_that_change
arrays of text and objects run eagerly: values/test_numpy_arrays.py::test_arrays_of_other_elements
a read-only array stays read-only: values/test_numpy_arrays.py::test_a_read_only_array
modules of one class share code: test_modules.py::test_45
attributes and modes of modules are guarded: test_modules.py::test_46
state of modules changes: test_modules.py::test_47
hooks of modules: test_modules.py::test_48
a branch on data compiles both sides: acceptance/test_breaks.py::test_both_sides
runtime asserts on numbers from data: torch/test_data_dependent.py::test_violations
backend errors name the backend: test_exceptions.py::test_60
a backend may ask to be skipped: acceptance/test_backends.py::test_a_backend_may_ask
backend errors may be suppressed: acceptance/test_backends.py::test_errors_of_a_backend
a wrong backend is found: acceptance/test_backends.py::test_verification_finds
functions allowed in graphs are one node: regions/test_marks.py::test_what_is_allowed_is_one_node
disabled functions split the graph: regions/test_marks.py::test_what_is_disabled_splits
compiled modules within compiled code: test_modules.py::test_64
compiled functions of others: regions/test_marks.py::test_wrapped_functions
values of all kinds as arguments: acceptance/test_values.py::test_values_that_are_equal
dead weak references: acceptance/test_values.py::test_a_dead_weak_reference
iterators as arguments: acceptance/test_values.py::test_an_iterator_argument
hooks on tensors: acceptance/test_operators.py::test_gradients_are_eagers
recurrent, sparse, nested and jagged tensors: acceptance/test_operators.py::test_tensors_of_other
layers of LSTM: acceptance/test_operators.py::test_an_lstm
wrapper subclasses: torch/test_wrapper_tensors.py::test_
subclasses with __torch_function__: torch/test_torch_function.py::test_
steps of optimizers: acceptance/test_operators.py::test_a_step_of_an_optimizer
autograd functions and checkpoints: acceptance/test_operators.py::test_gradients_are_eagers
cond lifts what its branches close over: acceptance/test_operators.py::test_each_branch_lifts
branches with effects or breaks: acceptance/test_operators.py::test_a_branch_must_be
numbers of NumPy: values/test_numpy_scalars.py::test_
prints wait for the graph: values/test_printing.py::test_
prints wait for the graph, in order: values/test_printing.py::test_a_print_is_one_graph
warnings are attributed to the user's line: values/test_printing.py::test_warnings_are_eagers
functions that change torch's state: torch/test_state_functions.py::test_state_is_what_eager
calls of loggers: values/test_loggers.py::test_
custom operators without a tag: acceptance/test_decided.py::test_custom_operators
callbacks at compile time: acceptance/test_decided.py::test_callbacks
random numbers of Python: acceptance/test_decided.py::test_random_numbers
one object in many threads: acceptance/test_decided.py::test_threads
cached helpers: acceptance/test_values.py::test_a_cached_helper
scripted helpers: regions/test_marks.py::test_wrapped_functions
nodes say where they come from: test_capture.py::test_69
a shared module is named by its use: torch/test_module_values.py::test_a_shared_module
composites and modes are nodes: acceptance/test_graphs.py::test_composites_and_modes
errors of shapes are eager's: acceptance/test_graphs.py::test_shape_errors
explain: test_explain.py::test_71
the recompile limit: test_dynamic.py::test_72
the recompile limit as an error: acceptance/test_backends.py::test_the_recompile_limit
namespaces of the user stay clean: acceptance/test_values.py::test_nothing_is_left
scripted modules and traces: regions/test_marks.py::test_scripted_modules
devices that are missing: acceptance/test_values.py::test_events_and_streams
"""
ROWS = [line.rpartition(": ")[::2] for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize(("behaviour", "place"), ROWS, ids=[row[0] for row in ROWS])
def test_each_behaviour_has_a_test(behaviour, place):
    file, _, name = place.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert any(n.startswith(name) for n in names), behaviour
