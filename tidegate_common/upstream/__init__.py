"""TLS towards replicas: a pool's ``upstream_tls`` for whoever asks replicas."""
