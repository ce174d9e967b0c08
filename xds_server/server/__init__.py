"""The control server's gRPC server: ADS streams, publications and the pickers' reports."""
