"""Who chooses: the production router, published rules of others, and an oracle."""
