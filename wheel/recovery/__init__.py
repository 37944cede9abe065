"""How a start goes on: what is kept of the files, and what is rebuilt."""
