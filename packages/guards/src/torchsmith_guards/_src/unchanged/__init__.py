"""Deciding by one native call that nothing has changed since a guard set was last found to hold.

In: a guard set's tree and the objects that a full check has just passed for. Out: a table of
machine words and of tensors' metadata, and the guards that the table does not answer for. Read
``survey.py`` first: what a dict's stamp shows, and what it does not.
"""
