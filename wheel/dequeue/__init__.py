"""Dequeue: closed slots, decoded in order, out to the publisher, and committed."""
