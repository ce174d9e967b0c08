"""vLLM's KV events: changes of the engines' caches, over ZMQ, applied to the prefix index.

``decode``, ``sequence`` and ``translate`` are pure; ``subscribe`` reads sockets; ``collector``
follows the fleet. Only ``decode`` and ``subscribe`` need the extra ``tidegate[kv-events]``; they
are imported when a pool uses events.
"""
