"""The picker's connection to the control server: pools in, reports out."""
