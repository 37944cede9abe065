"""The preview of a start, and the timers of a lost cluster from its mirror."""
