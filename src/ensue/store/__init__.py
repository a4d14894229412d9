"""The durable event log: every event of every topic.

`open_log(url)` opens a log for reading, in a directory or at a server. `LogWriter` and `LogSink`
write a log directory, which any process can read.
"""

from importlib.util import find_spec

from ensue.core.errors import MissingExtra

if find_spec("pyarrow") is None:
    raise MissingExtra(extra="trace", needed_for="The event log")

from ensue.store.layout import log_folder
from ensue.store.reader import Bounds, DirectoryReader, LogReader, open_log
from ensue.store.run_log import LogSink
from ensue.store.schema import COLUMNS, log_schema
from ensue.store.writer import LogWriter

__all__ = [
    "COLUMNS",
    "Bounds",
    "DirectoryReader",
    "LogReader",
    "LogSink",
    "LogWriter",
    "log_folder",
    "log_schema",
    "open_log",
]
