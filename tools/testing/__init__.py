"""Tools about the tests: whether they find faults, and whether they fail by luck."""
