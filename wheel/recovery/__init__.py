"""Carries out the decision of a start (checkpoints/recovery_decision.py): rebuilds what is not kept."""
