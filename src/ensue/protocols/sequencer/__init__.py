"""Total order by a chain of sequencer nodes. See `docs/protocols/sequencer.md`."""
