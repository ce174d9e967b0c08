"""``top``: a view of pools, variants and replicas that fills the terminal and refreshes itself."""
