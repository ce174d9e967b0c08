"""The only writer of the fleet, and what it needs of the ADS server."""
