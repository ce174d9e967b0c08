"""What a decision reads: pools, candidates, replicas, the ledger, leases."""
