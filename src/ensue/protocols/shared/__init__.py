"""Building blocks of several protocols.

`link` makes FIFO, exactly-once links between nodes. `state_store` keeps records of clients at a
node of the chain, and `remote_state` is a client's node whose records are there. `clock_monitor`
measures clocks and delays of other processes. `event_numbers` numbers a publisher's events.
"""
