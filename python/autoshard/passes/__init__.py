"""The MLIR passes of autoshard: each reads the module, decides, and writes attributes.

One pass a file. ``registry`` names them, ``pipeline`` runs them, mixed with jaxlib's own.
"""
