"""Suite of experiments that produces the results in the documentation."""
