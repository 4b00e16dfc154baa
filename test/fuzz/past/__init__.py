"""Cases that were wrong once, made small; each module holds a ``CASE``."""
