"""Sources of endpoints, one module each, behind ``xds_server.discovery.values.Source``."""
