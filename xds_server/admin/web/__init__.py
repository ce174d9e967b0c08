"""The admin API over HTTP with JSON, and its description as OpenAPI."""
