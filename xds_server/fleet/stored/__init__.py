"""Form in which the store keeps fleets: a revision names its pools by digest."""
