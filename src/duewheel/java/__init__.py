"""Java, and a Spark session on it."""
