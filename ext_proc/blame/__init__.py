"""The law of blame: who is at fault for an attempt that failed, and what follows from it. Pure."""
