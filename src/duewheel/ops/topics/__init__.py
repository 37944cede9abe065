"""Topics: `init`, `topic create` and `topic read`."""
