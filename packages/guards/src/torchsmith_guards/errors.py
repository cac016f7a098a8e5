"""Errors that torchsmith_guards raises to its users."""
