"""How the store keeps fleets on disk: tables, pools by digest, writes, read-only copies."""
