"""Health of endpoints: conditions and outlier ejection, which keep them from new work."""
