"""Messages and timers as columns: what a request says, and bytes on the wire."""
