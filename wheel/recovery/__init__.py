"""Carries out a start's decision (checkpoints/recovery_decision.py): rebuilds files that are not
kept.
"""
