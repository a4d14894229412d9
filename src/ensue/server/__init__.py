"""An Ensue server: one station of a chain, its journal, and the connections to it."""

from ensue.server.config import ServerConfig
from ensue.server.serving import Server

__all__ = ["Server", "ServerConfig"]
