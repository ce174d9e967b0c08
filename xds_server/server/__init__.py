"""The control server's gRPC server: ADS streams, publications, the pickers' reports."""
