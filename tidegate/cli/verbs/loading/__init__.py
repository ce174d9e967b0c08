"""The verb that loads and unloads models."""
