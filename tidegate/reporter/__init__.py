"""A small program that runs beside a replica and pushes what its metrics page says to pickers."""
