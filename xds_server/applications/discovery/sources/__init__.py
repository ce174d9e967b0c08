"""Sources of endpoints, one module each, behind ``discovery.values.Source``."""
