"""Which endpoints must not get new work: conditions and outlier ejection."""
