"""The state that decisions read: pools, candidates, replicas, the ledger, leases."""
