"""The local stack: real Triton replicas, both services and Envoy as children of one process."""
