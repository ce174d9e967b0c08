"""Examines a deployment before and while it runs: the machine, files, replicas, services.

Each module reads facts at the edge and judges them in pure functions; all judge in the same form,
a ``Diagnosis`` with what is wrong and what to do.
"""
