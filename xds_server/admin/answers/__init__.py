"""Answers of the admin service: errors in words, and calls about models."""
