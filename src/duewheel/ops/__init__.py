"""What the operator's commands do, one module a command."""
