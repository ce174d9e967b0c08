"""What really happened to requests: Envoy's access-log stream and readiness probes."""
