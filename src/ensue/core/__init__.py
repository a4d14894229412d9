"""Values that everything else uses: events, orders, errors, clocks, the wire format, the trace."""
