"""The picker's gRPC server: the service, its streams, the wire messages and the transports."""
