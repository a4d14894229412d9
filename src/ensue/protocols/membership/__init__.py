"""Membership of ordered processes: numbers and topic permissions.

Causal and deadline order run between client processes. All that they must agree on beforehand is
which process has which number. A `Registry` beside the first station of a chain keeps that list,
one for each kind of order; a `MembershipClient` in each process follows it.

Theory of operation
    The registry keeps two lists that only grow: names, in the order of their numbers, and the
    numbers of members that have left. A client that knows the first k entries of either can be
    sent the rest, so a lost answer costs one more request.

    - A new process sends `Register` until it has both lists. All members are notified at once.
    - A member polls every few seconds. So it learns of members whose updates were lost, and the
      registry knows that it is alive.
    - A member that leaves sends `Deregister` until the answer `Evicted` arrives. A member that is
      silent for `expire_ns` is evicted; if it reconnects, it is notified and ends: its number may
      no longer be valid.
    - When all members have left, a new epoch begins with number 0. Until then a number is never
      reused, because others may still hold or name events by it.
    - The first member of an epoch decides the `terms`, settings that all must share. A process
      with other terms is rejected.
    - A member requests each topic before it uses it (`TopicRequest`): an event that is refused on
      its way would leave a gap that all later events wait at. The registry grants everything; a
      server with permissions answers in its place.

    The registry persists both lists. If it lost their end (a power failure with `--sync` above 0),
    it would reuse numbers. So each request and each update carries a digest of the known prefix: a
    member that knows other lists is evicted. After a restart no new process gets a number until
    all former members have polled, or had the time to (`RETURN_NS`).

    It also persists which members have asked for which topics to subscribe to, until they release
    a topic or leave. A member that has published an event and knows of no subscriber asks for
    their numbers: its receipt waits for members that may have subscribed, and for no others.

    A registry that was stopped, or whose clock jumped, evicts no member for that time: only time
    in which the registry ran counts.

HAZARD: members that knew entries which the registry lost are evicted, and have to reconnect as new
members. A silent member of whose topic request the registry lost the record counts as one that
never subscribed.

Limit: `NODES_MAX` numbers in one epoch, including those of members that have left.
"""
