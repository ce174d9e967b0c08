"""Identity of machines: certificates from files, roles by their names, and who may call what."""
