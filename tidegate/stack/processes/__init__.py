"""Child processes: supervisor, environment, ports, waiting."""
