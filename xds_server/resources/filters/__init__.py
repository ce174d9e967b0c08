"""HTTP filters of the listener beside ext_proc and the router."""
