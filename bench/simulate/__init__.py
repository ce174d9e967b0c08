"""Simulator of a fleet in virtual time, to compare routing policies on traces and generated load.

The picker's policies run unchanged: the simulator calls the picker's ``Router`` with virtual time.
"""
