"""Generated protobuf code and its schema; see ``protos.generate``."""
