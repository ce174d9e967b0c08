"""The wire contracts of Tidegate: protobuf schemas, their generated code and the shared names."""
