"""`ensue://`: frames over TCP connections to Ensue's own servers."""
