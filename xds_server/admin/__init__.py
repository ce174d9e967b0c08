"""gRPC services of the control server for operators."""
