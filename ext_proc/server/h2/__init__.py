"""gRPC over HTTP/2 by libnghttp2, in the event loop's own thread: the extra ``fast``."""
