"""Causal order among peers, without a broker: spanning trees in a virtual hypercube.

Guarantee
    If one event causally precedes another, no node delivers the later one first: within a topic,
    or across all topics with `across_topics`. Every member of a topic delivers each event that
    was published after it joined exactly once: when the tree brings it, or later if the member
    was away. A node delivers events of its own topics only.

Theory of operation
    `Causality` decides what may be delivered. It uses only event numbers and barriers (the
    direct predecessors that an event names), so no loss, delay, duplicate, crash or false
    suspicion can break the order. Everything else is about progress:

    - `Trees` brings a message to every node that can be reached. The source chooses the targets,
      a child relays to its part of the cluster, and receipts come back along the same edges.
    - `Repair` brings events to everyone else. Members compare summaries, ask for gaps, and send
      each other what is missing; `Retrieval` keeps asking until a peer answers with the event or
      all have answered that they do not have it; `LossRecovery` then skips it without breaking
      order.
    - `Membership` holds one row per node: the topics it is in, with a version that only that node
      raises. `Neighbors` compares rows by heartbeat; `FailureDetector` notes missing answers.
    - `Publications` numbers and sends the events of this node; `Subscriptions` joins and leaves
      topics. `CausalNode` owns all of these and routes frames to them.

    Join. A node raises the version of its row and sends it to all nodes as a `Change`. A receiver
    sends the joiner everything it publishes from then on, and answers with what it has delivered
    and published so far. When all reachable nodes have answered, the maximum of the answers is
    the start vector. A node that could not be reached learns of the member when it is back; until
    then `Repair` brings its events. To leave, a node sends a `Change` without the topic. `Change`
    frames may overtake each other; versions decide which one is newer.

    `RegisteredNode` runs a `CausalNode` whose peers are other processes: a registry numbers them
    and authorizes topics (`ensue.protocols.membership`).

Assumptions
    A node keeps its records over a crash, or restarts under another name. Events are retained
    (`retained_max`) until members that were away for a while are back.

HAZARD: a node that lost its records and keeps its name reuses event numbers. Other nodes drop its
events as duplicates, and its old tokens fit new copies. Give it a new name.

HAZARD: a member that is away longer than events are retained misses some, as it does when all
nodes that had an event are gone. The application is notified (`Join.missed`), and order holds.

HAZARD: a node that joins while it can reach no other node starts from what it knows itself, and
may deliver events from before its join.

Deviations from the paper (VCube-PS)
    The errata are corrected. Added: any number of nodes; crashes, losses and partitions;
    publishers that do not subscribe; order across topics; windows and batches. Errata 2 and 3
    cannot occur: there are no queues and tasks per subscription.
"""
