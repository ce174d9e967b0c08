"""Simulated schedulers: the picker's router, published rules of other routers, and an oracle."""
