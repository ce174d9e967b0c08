"""KV events of vLLM: what its engines say of their caches, over ZMQ, into the prefix index.

``decode`` and ``sequence`` and ``translate`` are pure; ``subscribe`` reads sockets; ``collector``
follows the fleet. Only ``decode`` and ``subscribe`` need the extra ``tidegate[kv-events]``, and are
imported where a pool asks for events.
"""
