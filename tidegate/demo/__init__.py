"""``tidegate demo``: the whole system on one machine; each phase checks one guarantee."""
