"""Generated protobuf code and its schema; see ``tidegate_api.generate``."""
