"""Bridges to other packages, each an optional extra that is imported when it is used."""
