"""The local stack: Triton replicas, both services and Envoy as child processes."""
