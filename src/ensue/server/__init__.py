"""An Ensue server: one station of a chain, its journal, and its connections."""

from ensue.server.config import ServerConfig
from ensue.server.server import Server

__all__ = ["Server", "ServerConfig"]
