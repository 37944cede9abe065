"""Java, the jars that pip does not bring, and a Spark session that uses both."""
