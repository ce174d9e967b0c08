"""Many experiments as one: what the results in the documentation are made of."""
