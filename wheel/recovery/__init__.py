"""Decides at a start which files are kept, and rebuilds the rest."""
