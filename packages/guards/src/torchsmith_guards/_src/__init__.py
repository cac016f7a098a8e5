"""Private code of ``torchsmith_guards``; import from the top-level package instead."""
