"""Turns Python functions into torch.fx graphs, guards and new bytecode."""
