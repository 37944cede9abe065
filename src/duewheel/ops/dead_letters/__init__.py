"""Dead letters: their list, and their replay."""
