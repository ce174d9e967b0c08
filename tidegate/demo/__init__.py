"""``tidegate demo``: the whole system on one machine, each promise shown and judged."""
