"""The gateway: answers questions about a whole fleet as one Triton would."""
