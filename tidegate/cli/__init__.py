"""The command line: verbs, what they print, and how they fail.

Only ``typer`` is imported when the program starts; everything else is imported by the verb that
needs it, so that ``tidegate --help`` answers at once.
"""
