"""Sources, guards, guard checkers and symbolic shapes for PyTorch compilers."""
