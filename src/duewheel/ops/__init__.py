"""The operations behind the operator's commands, one module per command."""
