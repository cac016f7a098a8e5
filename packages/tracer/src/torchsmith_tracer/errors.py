"""Errors that torchsmith_tracer raises to its users."""
