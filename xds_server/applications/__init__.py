"""What the control server does on top of xDS: it finds replicas, loads models and merges reports.

The parts that speak xDS (``fleet``, ``protocol``, ``resources``, ``builds``, ``snapshots``) and the
writer (``control``) know none of these.
"""
