"""The command line: verbs, their output and their errors.

Only ``typer`` is imported at start. Each verb imports what it needs when it runs, so that
``tidegate --help`` answers without loading gRPC, pydantic or numpy.
"""
