"""Links between the pickers of several hosts, on which they replicate as workers of one host do."""
