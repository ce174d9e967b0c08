"""Generated protobuf code; see ``tidegate_api.generate``."""
