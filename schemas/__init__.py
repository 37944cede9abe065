"""Messages and timers as columns: the headers of requests, and bytes on the wire."""
